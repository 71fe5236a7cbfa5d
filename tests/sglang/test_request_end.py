"""How a request's end reaches the policy, and what a launch refuses about the law it learns."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import numpy as np
import pytest
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH, FINISH_MATCHED_TOKEN, Req
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.sampling.sampling_params import SamplingParams

from radiximp.config import ConfigError, PolicyConfig
from radiximp.policy.gittins import GittinsPolicy
from radiximp.serving.finish import FinishReader
from radiximp.serving.launch import check_server_args
from tests.sglang.builders import build_cache, fresh_prompts, request

HERMES_CALL = '<tool_call>\n{"name": "find", "arguments": {}}\n</tool_call>'


class Words:
    """A tokenizer whose ids are characters."""

    def decode(self, ids) -> str:
        return "".join(map(chr, ids))


def ended(reason, text: str = "done") -> Req:
    req = Req("r", "", array("q", [1, 2]), SamplingParams(max_new_tokens=4))
    req.output_ids = array("q", map(ord, text))
    req.tokenizer, req.finished_reason = Words(), reason
    return req


@pytest.mark.parametrize(
    "reason, text, parser, kind",
    [
        (FINISH_MATCHED_TOKEN(matched=2), "done", None, "end_turn"),
        (FINISH_MATCHED_TOKEN(matched=2), HERMES_CALL, None, "end_turn"),
        (FINISH_MATCHED_TOKEN(matched=2), HERMES_CALL, "hermes", "tool_use"),
        (FINISH_MATCHED_TOKEN(matched=2), "done", "hermes", "end_turn"),
        (FINISH_LENGTH(length=4), HERMES_CALL, "hermes", "length"),
        (FINISH_ABORT(), "done", "hermes", ""),
    ],
)
def test_the_finish_kind_is_what_the_scheduler_knows(reason, text, parser, kind):
    assert FinishReader(parser).end_of(ended(reason, text)) == (kind, len(text))


def test_a_running_request_has_no_end():
    assert FinishReader("hermes").end_of(ended(None)) is None


def test_what_was_learned_survives_a_flush_but_not_new_weights():
    cache, fresh = build_cache(4096), fresh_prompts()
    prompts = [fresh(32) for _ in range(20)]
    for number in range(200):
        request(cache, prompts[number % 20])
    core = cache.tree_core
    assert isinstance(core.policy, GittinsPolicy)

    def curves() -> np.ndarray:
        core.settle()
        return np.array([core.policy.curve(number).values for number in range(core.policy.law.num_classes)])

    learned = curves()
    cache.reset()
    after_flush = curves()
    assert learned.shape == after_flush.shape
    assert np.corrcoef(np.log(learned).ravel(), np.log(after_flush).ravel())[0, 1] > 0.9
    core.forget()
    cold = curves()
    assert not np.allclose(cold, after_flush)
    fresh_policy = GittinsPolicy(PolicyConfig())
    fresh_policy.advance(0.0)
    np.testing.assert_allclose(cold[0], fresh_policy.curve(0).values)
    request(cache, prompts[0])
    cache.evict(EvictParams(num_tokens=8))
    cache.sanity_check()


@pytest.mark.parametrize(
    "config, pp_size, message",
    [
        ({"law_path": "/nowhere/law.json"}, 1, "law_path: expected a file in a folder that can be written"),
        ({"law_path": "/"}, 1, "law_path: expected a file in a folder that can be written"),
        ({"law_path": "law.json"}, 2, "law_path: not with --pp-size above 1"),
        ({"law_path": 3}, 1, "law_path: expected a text, got 3"),
    ],
)
def test_a_law_path_that_cannot_work_is_refused_at_launch(config, pp_size, message):
    args = SimpleNamespace(
        radix_eviction_policy="importance",
        radix_eviction_policy_config=config,
        disable_radix_cache=False,
        pp_size=pp_size,
    )
    with pytest.raises(ConfigError, match=message):
        check_server_args(args)
