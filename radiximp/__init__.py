"""A KV cache for SGLang whose radix tree remembers what the model attends to.

Importing this package loads neither torch nor sglang; `radiximp.serving` does.
"""

__version__ = "0.1.0"
