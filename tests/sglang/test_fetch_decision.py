"""Fetch or recompute at SGLang's admission, over real pools: the choice, the KV, the counters, the locks."""

from __future__ import annotations

import pytest
from sglang.srt.mem_cache.unified_cache.cache_action import BackupKV

from radiximp.cost.calibration import PrefillBatch
from radiximp.cost.live import HOST
from radiximp.serving.fetch.decision import shorten
from tests.sglang.admission_rig import AdmissionRig


@pytest.fixture
def rig_of():
    rigs = []

    def make(*args, **kwargs) -> AdmissionRig:
        rigs.append(AdmissionRig(*args, **kwargs))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


def prompt(num_tokens: int, first: int = 1000) -> list[int]:
    return list(range(first, first + num_tokens))


@pytest.mark.parametrize(
    "prefill_tokens_per_s, host_tokens, fetched",
    [(5000, 96, 0), (5000, 112, 112), (2500, 48, 0), (2500, 64, 64)],
)
def test_case_14_and_its_mirror(rig_of, prefill_tokens_per_s, host_tokens, fetched):
    rig = rig_of()
    rig.demote(prompt(host_tokens))
    rig.teach(0.020, 1e-5, prefill_tokens_per_s)
    request = rig.serve([*prompt(host_tokens), 8, 9])
    assert (request.prefix_len, request.host_loaded_length) == (fetched, fetched)
    assert request.materialized_host_hit_len() == fetched
    rig.check_idle()


@pytest.mark.parametrize("mode, fetched", [("measure", 96), ("recompute", 0), ("stock", 96)])
def test_the_other_modes(rig_of, mode, fetched):
    rig = rig_of(mode)
    rig.demote(prompt(96))
    if mode != "stock":
        rig.teach(0.020, 1e-5, 5000)
    assert rig.serve([*prompt(96), 8]).host_loaded_length == fetched
    rig.check_idle()


def test_stock_makes_no_measurements(rig_of):
    assert rig_of("stock").fetch is None


def test_before_anything_was_measured_all_is_fetched(rig_of):
    rig = rig_of()
    rig.demote(prompt(96))
    assert rig.serve([*prompt(96), 8]).host_loaded_length == 96
    assert rig.fetch.costs.tiers[HOST].is_known
    assert rig.fetch.counts["fetch_all"] == 1
    assert rig.fetch.counts["host_tokens_fetched"] == 96


def test_a_part_is_fetched_and_the_node_is_cut(rig_of):
    rig = rig_of()
    rig.demote(prompt(512))
    rig.fetch.costs.is_overlapped = True
    rig.fetch.costs.state = type(rig.fetch.costs.state)(rig.fetch.costs.state.bytes_per_token, num_layers=30)
    rig.teach(1e-6, 2e-4, 4000)
    request = rig.serve([*prompt(512), 8])
    assert request.host_loaded_length == request.prefix_len == 256
    assert rig.fetch.counts["fetch_part"] == 1
    rig.check_idle()
    again = rig.serve([*prompt(512), 9])
    assert again.prefix_len == 512, "computed again, it is on the device, too"
    rig.check_idle()


@pytest.mark.parametrize("write_policy", ["write_through", "write_back", "write_through_selective"])
@pytest.mark.parametrize("num_tokens", [0, 16, 32, 48, 64, 80, 160, 176])
def test_a_host_hit_can_be_cut_at_every_page(rig_of, num_tokens, write_policy):
    rig = rig_of("measure", write_policy=write_policy)
    rig.demote(prompt(64))
    rig.demote(prompt(176))
    request = rig.request([*prompt(176), 8])
    request.init_next_round_input(rig.cache)
    shorten(rig.cache, request, num_tokens)
    assert request.host_hit_length == num_tokens
    rig.check()
    again = rig.serve([*prompt(176), 8])
    assert again.prefix_len == 176
    rig.check_idle()


def test_on_the_device_a_part_and_on_the_host_the_rest(rig_of):
    rig = rig_of()
    rig.demote(prompt(320))
    request = rig.request([*prompt(320), 8])
    request.init_next_round_input(rig.cache)
    shorten(rig.cache, request, 160)
    assert rig.cache.load_back(request.best_match_node)
    rig.cache.ready_to_load_host_cache()
    rig.drain()
    rig.teach(0.020, 1e-5, 5000)
    served = rig.serve([*prompt(320), 8])
    assert (served.prefix_len, served.host_loaded_length) == (320, 160)
    rig.check_idle()


def test_what_can_be_fetched_back_is_lost_before_what_must_be_computed_again(rig_of):
    """Two prompts alike in all but a copy on the host: the older one has none, and stays."""
    rig = rig_of(write_policy="write_through_selective")
    rig.teach(1e-4, 1e-6, 1000)
    old, new = prompt(160, 1000), prompt(160, 3000)
    rig.serve([*old, 7])
    rig.serve([*new, 7])
    for node in list(rig.core.evictable_device_leaves):
        if node.key.token_ids[0] == new[0]:
            rig.cache._execute_and_commit_kv_backup(BackupKV([node.id]))
    rig.drain()
    rig.fetch.share()
    assert [victim["is_on_host"] for victim in rig.core.dry_run(320)] == [True, False]
    rig.check_idle()


@pytest.mark.parametrize("write_policy", ["write_through", "write_back", "write_through_selective"])
def test_the_order_of_victims_is_exact_while_copies_come_and_go(rig_of, write_policy):
    rig = rig_of(write_policy=write_policy, device_tokens=640, host_ratio=2.0)
    for number in range(80):
        rig.serve([*prompt(96 + 16 * (number % 6), first=10_000 * (number * number % 11)), 7])
        rig.fetch.costs.prefill.note(PrefillBatch.of([(100, 0)]), 0.05 * (1 + number % 13))
        rig.fetch.share()
        rig.check_idle()
    assert rig.core.num_evictions["device"] > 20
    assert rig.fetch.counts["fetch_all"] > 0
