"""SGLang without a GPU: platform, host buffers, attention, linear layers. Imports no torch by itself.

`install()` is called by the plugin in every SGLang process; `platform.py` is found by SGLang itself.
"""

from __future__ import annotations

_is_installed = False


def install() -> None:
    """Put the CPU pieces into SGLang's registries, once; does nothing unless our platform is the active one."""
    global _is_installed
    from radiximp.serving.cpu import platform

    if _is_installed or not platform.is_active():
        return
    from radiximp.serving.cpu import attention, host_pool, linear, runtime

    for module in (attention, host_pool, linear, runtime):
        module.register()
    _is_installed = True


def is_installed() -> bool:
    """True if `install` finished in this process."""
    return _is_installed
