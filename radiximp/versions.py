"""What is installed in this process, for bug reports."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("radiximp", "sglang", "torch", "flashinfer-python", "sgl-kernel", "transformers", "numpy")


def installed_versions() -> dict[str, str | None]:
    """Package -> version, None where it is not installed; Python and the operating system too."""
    found: dict[str, str | None] = {"python": platform.python_version(), "platform": platform.platform()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
