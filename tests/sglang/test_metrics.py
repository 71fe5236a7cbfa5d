"""The metrics' numbers against ground truth: requests whose hits and evictions are known beforehand."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, Req
from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer
from sglang.srt.sampling.sampling_params import SamplingParams

from radiximp.policy.clock import ManualClock
from radiximp.serving.fetch import costs
from radiximp.serving.metrics.docs import page
from radiximp.serving.metrics.export import Exporter
from radiximp.serving.metrics.table import TABLE
from radiximp.serving.metrics.tally import Buckets
from radiximp.serving.requests import note_end, tokens_by_tier
from tests.sglang.builders import build_cache, key_of, request
from tests.sglang.kv_rig import KvRig

LABELS = {"model_name": "m", "engine_type": "unified", "tp_rank": 0, "pp_rank": 0, "moe_ep_rank": 0}


class Scrape:
    """An exporter in a registry of its own, and what a scrape of it says."""

    def __init__(self, core) -> None:
        self.core, self.registry = core, CollectorRegistry()
        self.exporter = Exporter(LABELS, self.registry)

    def __call__(self, name: str, **labels: str) -> float | None:
        self.core.settle()
        self.exporter.export(self.core, is_complete=True)
        return self.registry.get_sample_value(name, {**{k: str(v) for k, v in LABELS.items()}, **labels})


def ended(rid: str, tokens: list[int], device: int = 0, host: int = 0, storage: int = 0) -> Req:
    """A request that is over, and found that much."""
    req = Req(rid, "", array("q", tokens), SamplingParams(max_new_tokens=1))
    req.full_untruncated_fill_ids = array("q", tokens)
    req.finished_reason = FINISH_LENGTH(length=1)
    req.cached_tokens = device + host + storage
    req.cached_tokens_device, req.cached_tokens_host, req.cached_tokens_storage = device, host, storage
    return req


def test_hits_and_evictions_of_a_script_are_exactly_what_it_does():
    """Pool 1,000: A and B of 400 fit, C pushes out 200 of the colder one's tail, which then comes back."""
    cache = build_cache(1000)
    core = cache.tree_core
    read = Scrape(core)
    prompts = {name: list(range(start, start + 400)) for name, start in (("a", 0), ("b", 1000), ("c", 2000))}

    def ask(name: str, rid: str) -> int:
        found = request(cache, prompts[name])
        note_end(core, ended(rid, prompts[name], device=found))
        return found

    assert [ask("a", "1"), ask("b", "2"), ask("b", "3")] == [0, 0, 400]
    assert ask("c", "radiximp-prewarm-x") == 0
    assert read("radiximp_evicted_tokens_total", tier="device", reason="dropped") == 200
    assert ask("a", "4") == 200
    assert read("radiximp_regret_tokens_total") == 200
    assert read("radiximp_evicted_tokens_total", tier="device", reason="dropped") == 400
    assert read("radiximp_requests_total", caller="user") == 4
    assert read("radiximp_requests_total", caller="warm") == 1
    assert read("radiximp_prompt_tokens_total", caller="user") == 1600
    assert read("radiximp_hit_tokens_total", tier="device", caller="user") == 600
    assert read("radiximp_hit_tokens_total", tier="host", caller="user") == 0
    assert read("radiximp_hit_tokens_total", tier="device", caller="warm") == 0
    assert core.stats()["left_tokens"]["device_dropped"] == core.num_evicted_tokens["device"] == 400
    # B came back whole, A's 200 that were left, and its 200 that were not.
    assert read("radiximp_reuse_gap_seconds_count") == 800
    assert (
        read(
            "radiximp_info",
            **dict(zip(("version", "policy", "tree_core", "scorer"), info(core), strict=True)),
        )
        == 1
    )


def info(core) -> tuple[str, ...]:
    (labels,) = next(metric for metric in TABLE if metric.name == "radiximp_info").read(core)
    return labels


@pytest.mark.parametrize("write_policy", ["write_through", "write_back"])
def test_tokens_that_leave_a_tier_are_those_the_pools_lost(write_policy):
    rig = KvRig(600, write_policy=write_policy, host_ratio=1.5)
    try:
        read = Scrape(rig.core)
        host_pool = rig.cache.cache_controller.mem_pool_host
        inserted = copied = 0
        for number in range(12):
            started = rig.start(range(10_000 * number, 10_000 * number + 150))
            inserted += 150
            rig.finish(started[0])
            rig.drain()
        device_left = sum(
            read("radiximp_evicted_tokens_total", tier="device", reason=reason) or 0
            for reason in ("demoted", "dropped")
        )
        on_device = rig.device_tokens - rig.allocator.available_size()
        assert device_left == inserted - on_device > 0
        host_left = sum(
            read("radiximp_evicted_tokens_total", tier="host", reason=reason) or 0
            for reason in ("dropped", "duplicate")
        )
        on_host = host_pool.size - host_pool.available_size()
        copied = (
            inserted
            if write_policy == "write_through"
            else read("radiximp_evicted_tokens_total", tier="device", reason="demoted")
        )
        assert host_left == copied - on_host > 0
    finally:
        rig.close()


def test_the_tiers_of_a_response_add_up_and_a_cold_one_says_0():
    details = details_of(build_cache(64))
    chunked = ended("1", [1] * 50, device=10, host=5)
    chunked.cached_tokens += 8  # a later chunk found what another request computed meanwhile
    assert tokens_by_tier(chunked) == {"device": 18, "host": 5, "storage": 0}
    assert details(chunked) == {"device": 18, "host": 5}
    assert details(ended("2", [1] * 50)) == {"device": 0, "host": 0}


def details_of(cache):
    """SGLang's own method, with our hook on it, for a server with that cache."""
    streamer = object.__new__(SchedulerOutputStreamer)
    streamer.tree_cache, streamer.enable_hicache_storage = cache, lambda: False
    return streamer.get_cached_tokens_details


def test_another_policy_keeps_sglangs_own_details():
    assert details_of(build_cache(64, policy="lru"))(ended("1", [1])) is None


def test_importance_is_counted_by_node_and_observation():
    cache = build_cache(1000)
    core = cache.tree_core
    read = Scrape(core)
    request(cache, list(range(100)))
    request(cache, [*range(60), *range(500, 540)])
    core.observe(key_of(list(range(100))), [3.0] * 60 + [0.5] * 40)
    assert read("radiximp_observations_total") == 1
    assert read("radiximp_importance_density_ratio_count") == 2
    assert read("radiximp_importance_density_ratio_sum") == 3.5
    assert read("radiximp_importance_density_ratio_bucket", le="0.5") == 1
    assert read("radiximp_importance_density_ratio_bucket", le="4.0") == 2


def test_hotspots_are_counted_when_somebody_looks():
    cache = build_cache(4096, config={"hotspot_queries": 3})
    core = cache.tree_core
    core.clock = clock = ManualClock()
    read = Scrape(core)
    for number in range(8):
        clock.advance(5)
        request(cache, [*range(100), *range(1000 * number + 1000, 1000 * number + 1010)])
    assert read("radiximp_hotspots") == 0
    assert len(core.hotspots()) == 1 and read("radiximp_hotspots") == 1


def test_the_cost_models_error_is_there_once_something_was_measured():
    rig = KvRig(256, write_policy="write_through", config={"fetch_decision": "measure"})
    try:
        costs.install(rig.cache)
        read = Scrape(rig.core)
        assert read("radiximp_cost_model_error_ratio", of="host") is None
        for _ in range(3):
            rig.core.fetch_costs.costs.note_transfer("host", 100, 0.01)
        assert read("radiximp_cost_model_error_ratio", of="host") == pytest.approx(0, abs=0.2)
        assert read("radiximp_cost_model_error_ratio", of="storage") is None
    finally:
        rig.close()


def test_exports_add_up_however_often_and_the_series_stay_the_same():
    cache = build_cache(1000)
    core = cache.tree_core
    read = Scrape(core)

    def num_series() -> int:
        return sum(len(family.samples) for family in read.registry.collect())

    for number in range(200):
        tokens = list(range(number * 100, number * 100 + 100))
        note_end(core, ended(str(number), tokens, device=request(cache, tokens)))
        read.exporter.export(core, is_complete=True)
        if number == 0:
            before = num_series()
    assert read("radiximp_prompt_tokens_total", caller="user") == 20_000
    assert read("radiximp_evicted_tokens_total", tier="device", reason="dropped") == 19_000
    assert num_series() == before


def test_without_a_guard_its_series_are_absent():
    read = Scrape(build_cache(100, config={"score": "lrfu"}).tree_core)
    assert read("radiximp_guard_tripped") is None and read("radiximp_pinned_tokens") == 0


def test_the_table_is_sound():
    names = [metric.name for metric in TABLE]
    assert len(set(names)) == len(names)
    for metric in TABLE:
        assert metric.name.startswith("radiximp_") and metric.help.endswith((".", "reported"))
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.kind in ("counter", "gauge", "histogram") and bool(metric.edges) == (
            metric.kind == "histogram"
        )
    core = build_cache(100).tree_core
    for metric in TABLE:
        if metric.read is None:
            continue
        for labels in metric.read(core):
            allowed = [values for _, values in metric.labels]
            assert len(labels) == len(allowed)
            assert all(not values or label in values for label, values in zip(labels, allowed, strict=True))


def test_a_bucket_includes_its_upper_edge():
    buckets = Buckets((1.0, 2.0))
    for value, weight in ((1.0, 3), (1.5, 1), (9.0, 2)):
        buckets.add(value, weight)
    assert buckets.counts == [3, 1, 2] and buckets.sum == 22.5


def test_the_page_of_the_docs_is_the_tables():
    shown = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    assert shown == page(), "run: python -m radiximp.serving.metrics > docs/metrics.md"
