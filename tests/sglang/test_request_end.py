"""How a request's end reaches the policy, and what a launch refuses about the law it learns."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import numpy as np
import pytest
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH, FINISH_MATCHED_TOKEN, Req
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams
from sglang.srt.sampling.sampling_params import SamplingParams

from radiximp.config import ConfigError, PolicyConfig
from radiximp.policy.gittins import GittinsPolicy
from radiximp.serving.launch import check_server_args
from radiximp.serving.tree.finish import FinishReader
from tests.sglang.builders import build_cache, fresh_prompts, key_of, request

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


@pytest.mark.parametrize("parser", ["response_template", "hermes"])
def test_a_parser_that_cannot_be_made_from_its_name_does_not_stop_the_start(parser):
    assert FinishReader(parser).end_of(ended(FINISH_LENGTH(length=4))) == ("length", 4)


def insert_for(cache, req: Req, prompt: list[int]) -> None:
    short = len(prompt) - cache.token_to_kv_pool_allocator.available_size()
    if short > 0:
        cache.evict(EvictParams(num_tokens=short))
    slots = cache.token_to_kv_pool_allocator.alloc(len(prompt))
    with cache.tree_core.uses.on_behalf_of(req):
        cache.insert(InsertParams(key=key_of(prompt), value=slots))


def test_a_request_ends_once_though_sglang_inserts_it_twice():
    cache, prompt = build_cache(4096), fresh_prompts()(100)
    core, ends = cache.tree_core, []
    record_end = core.policy.record_end
    core.policy.record_end = lambda path, *end: (ends.append(end[:2]), record_end(path, *end))
    req = ended(FINISH_LENGTH(length=4))
    insert_for(cache, req, prompt)
    insert_for(cache, req, prompt[:90])
    core.settle()
    assert ends == [("length", 4)]


def test_what_a_retracted_request_brought_back_counts_as_found():
    """Evicted while it waited, its nodes are in the tree again: the next hit is one, for the guard too."""
    cache, prompt = build_cache(4096), fresh_prompts()(1000)
    core, req = cache.tree_core, ended(None)
    core.observe_arrival(1.0)
    insert_for(cache, req, prompt)
    cache.evict(EvictParams(num_tokens=4096))
    insert_for(cache, req, prompt)
    core.settle()
    before = core.policy.guard.hit_tokens
    core.observe_arrival(2.0)
    insert_for(cache, ended(None), prompt)
    core.settle()
    assert core.policy.guard.hit_tokens - before == 1000


def test_a_prompt_that_leaves_in_tails_does_not_come_back_in_them():
    cache, prompt = build_cache(8192), fresh_prompts()(6000)
    for _ in range(4):
        request(cache, prompt)
        assert len(cache.tree_core.describe(key_of(prompt))) == 1
        while cache.tree_core.evictable_size():
            cache.evict(EvictParams(num_tokens=16))


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
    "config, args, message",
    [
        ({"law_path": "/nowhere/law.json"}, {}, "law_path: expected a file in a folder that can be written"),
        ({"law_path": "/"}, {}, "law_path: expected a file in a folder that can be written"),
        ({"law_path": "law.json"}, {"pp_size": 2}, "law_path: not with --pp-size above 1"),
        ({"law_path": 3}, {}, "law_path: expected a text, got 3"),
        ({"load_back": True}, {}, "load_back: needs a host tier; add --enable-hierarchical-cache"),
        (
            {"fetch_decision": "cost"},
            {},
            "fetch_decision: needs a host tier; add --enable-hierarchical-cache",
        ),
        (
            {"load_back": True},
            {"enable_hierarchical_cache": True, "sleep_on_idle": True},
            "load_back: not with --sleep-on-idle",
        ),
    ],
)
def test_a_setting_that_cannot_work_is_refused_at_launch(config, args, message):
    stock = {"radix_eviction_policy": "importance", "disable_radix_cache": False, "pp_size": 1}
    with pytest.raises(ConfigError, match=message):
        check_server_args(SimpleNamespace(**stock | args, radix_eviction_policy_config=config))
