from __future__ import annotations
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa
from radiximp.serving.cpu.platform import ATTENTION_BACKEND

def register():
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.arg_groups import choices
    if ATTENTION_BACKEND not in choices.ATTENTION_BACKEND_CHOICES:
        choices.add_attention_backend_choices([ATTENTION_BACKEND])
    def create(runner):
        from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
        return TorchNativeAttnBackend(runner)
    register_attention_backend(ATTENTION_BACKEND)(create)
