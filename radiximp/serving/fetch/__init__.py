"""KV between host and device: measured, decided at admission, undone when it fails, brought on order or ahead of time."""
