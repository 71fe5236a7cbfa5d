"""SGLang without a GPU: platform, host buffers, attention. `install()` is called once in every process."""

from __future__ import annotations


def install() -> None:
    """Put the CPU pieces into SGLang's registries; does nothing unless our platform is the active one."""
    from radiximp.serving.cpu import platform

    if not platform.is_active():
        return
    from radiximp.serving.cpu import attention, host_pool, runtime

    attention.register()
    host_pool.register()
    runtime.register()
