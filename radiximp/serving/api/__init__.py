"""The HTTP process: the `/radiximp/` calls, what they may carry, and what they order of the schedulers."""
