"""Which accelerator this machine has, as torch sees it. Imports torch only, so that it is quick to ask."""

from __future__ import annotations

import torch


def find() -> str | None:
    """Device type of an accelerator that torch can use ("cuda" also stands for ROCm), None if there is none."""
    for name in ("cuda", "xpu", "npu", "musa", "mps"):
        module = getattr(torch, name, None)
        if module is not None and module.is_available():
            return name
    return None
