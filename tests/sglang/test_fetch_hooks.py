"""The hooks that measure and decide: all in place, and a batch's time reaches the costs through them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.plugins.hook_registry import HookRegistry

from radiximp.serving.api.commands import answer
from radiximp.serving.fetch import hooks
from tests.sglang.admission_rig import AdmissionRig


@pytest.mark.parametrize("target", [target for target, _, _ in hooks.fetch_hooks()])
def test_sglang_has_what_is_hooked(target):
    assert target in HookRegistry._patched


def run_batch(rig: AdmissionRig, **batch) -> None:
    """What SGLang's loop does around one forward pass."""
    scheduler = SimpleNamespace(tree_cache=rig.cache, enable_overlap=False, schedule_stream=None)
    batch, result = ScheduleBatch(reqs=[], **batch), GenerationBatchResult()
    hooks._begin_batch(scheduler, batch)
    hooks._end_batch(result, scheduler, batch)
    hooks._conclude_batch(None, scheduler, batch, result)


@pytest.mark.parametrize("mode, num_samples", [("measure", 1), ("cost", 1), ("stock", 0)])
def test_prefill_batches_are_timed_and_others_are_not(mode, num_samples):
    rig = AdmissionRig(mode)
    run_batch(rig, forward_mode=ForwardMode.DECODE)
    run_batch(rig, forward_mode=ForwardMode.MIXED, extend_lens=[64, 1], prefix_lens=[0, 99])
    run_batch(rig, forward_mode=ForwardMode.IDLE)
    run_batch(rig, forward_mode=ForwardMode.EXTEND, extend_lens=[64, 32], prefix_lens=[0, 128])
    told = answer(rig.core, 'radiximp:{"name": "calibration"}', lambda: True)["calibration"]
    if num_samples:
        assert told["prefill"]["samples"] == num_samples
    else:
        assert told == {"mode": "stock", "reason": "fetch_decision is stock"}
    rig.close()
