"""A KV cache for SGLang whose radix tree remembers what the model attends to.

Importing this package loads neither torch nor sglang; `radiximp.serving` does.
"""

__version__ = "0.1.0"


def __getattr__(name: str):
    # httpx is loaded by those who talk to a server, and is an extra.
    if name in ("Client", "AsyncClient", "ApiError"):
        from radiximp import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
