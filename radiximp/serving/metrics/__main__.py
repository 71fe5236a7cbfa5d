"""`python -m radiximp.serving.metrics`: prints docs/metrics.md."""

from radiximp.serving.metrics.docs import page

print(page(), end="")
