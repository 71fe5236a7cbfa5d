"""Proactive load-back on real pools: what comes, within which budgets, and that nothing leaks, hangs or is read too early."""

from __future__ import annotations

import random

import pytest
import torch.distributed as dist
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from torch import multiprocessing

from eval.load_back import arrivals
from radiximp.serving.api import commands
from radiximp.serving.fetch import load_back
from radiximp.serving.fetch.load_back import LoadBackError
from radiximp.serving.tree.namespaces import joined, parted
from tests.sglang.builders import build_cache, fresh_prompts, hit
from tests.sglang.kv_rig import KvRig

DEVICE_TOKENS = 2048
CONFIG = {"load_back": True, "hotspot_queries": 10, "load_back_step_tokens": 256}


@pytest.fixture(params=[1, 16])
def rig(request):
    rig = open_rig(page_size=request.param)
    yield rig
    rig.close()


def open_rig(page_size: int = 1, write_policy: str = "write_through", **config) -> KvRig:
    rig = KvRig(
        DEVICE_TOKENS, page_size, config={**CONFIG, **config}, write_policy=write_policy, host_ratio=4.0
    )
    rig.core.start_load_back(rig.cache)
    rig.core.observe_arrival(1e9)
    rig.at_s = 0.0
    return rig


def wait(rig, seconds: float) -> None:
    rig.at_s += seconds
    rig.core.observe_arrival(1e9 + rig.at_s)


def ask(rig, prompt: list[int], salt: str | None = None) -> int:
    """One request, start to end; returns its hit tokens."""
    handle, num_hit = rig.start(prompt, salt)
    rig.finish(handle)
    rig.drain()
    return num_hit


def step(rig) -> dict:
    """One step, as the HTTP process orders it, and its copies completed."""
    reply = rig.core.load_back.step(is_idle=True)
    rig.drain()
    return reply


def order(rig) -> dict:
    """A step, after which every invariant holds and no lock is left."""
    reply = step(rig)
    assert not rig.cache.ongoing_load_back and rig.core.protected_size() == 0
    rig.check()
    return reply


def fill(rig, fresh, num_tokens: int = DEVICE_TOKENS) -> None:
    """One-shot prompts that take the device."""
    for _ in range(num_tokens // 256):
        wait(rig, 0.5)
        ask(rig, fresh(256))


def share(rig, fresh, num_tokens: int = 320, num_talks: int = 12, salt: str | None = None) -> list[int]:
    """A system prompt that many conversations use, a second apart; returns it."""
    system = fresh(num_tokens)
    for _ in range(num_talks):
        wait(rig, 2.0)
        ask(rig, system + fresh(32), salt)
    return system


def evict_all(rig) -> None:
    rig.cache.evict(EvictParams(num_tokens=DEVICE_TOKENS))
    rig.drain()


def to_host(rig, prompt: list[int]) -> None:
    """Evict all of the device, so that only the host has the prompt."""
    evict_all(rig)
    assert hit(rig.cache, prompt) == 0


def test_a_hotspot_on_the_host_comes_back_in_steps_within_the_budget(rig):
    fresh = fresh_prompts()
    system = share(rig, fresh)
    to_host(rig, system)
    steps = [order(rig)["tokens"] for _ in range(3)]
    assert steps[0] == 256 and hit(rig.cache, system) == 320
    assert ask(rig, system + fresh(32)) == 320
    steps.append(order(rig)["tokens"])
    stats = rig.core.stats()["load_back"]
    assert stats["tokens"] == sum(steps) >= 320 and stats["used_tokens"] == 320


def test_nothing_comes_while_anything_is_queued_or_on_its_way(rig):
    system = share(rig, fresh_prompts())
    to_host(rig, system)
    assert rig.core.load_back.step(is_idle=False) == {"state": "busy", "tokens": 0}
    assert rig.core.load_back.step(is_idle=True)["state"] == "brought"
    assert rig.core.load_back.step(is_idle=True) == {"state": "loading", "tokens": 0}
    rig.drain()
    rig.check()


def test_a_request_that_overtakes_a_load_waits_for_it(rig):
    system = share(rig, fresh_prompts())
    to_host(rig, system)
    controller = rig.cache.cache_controller
    assert rig.cache.ready_to_load_host_cache() == -1
    assert rig.core.load_back.step(is_idle=True)["tokens"] == 256
    # A prefill that loads nothing itself must wait for the load whose slots it matched.
    assert rig.cache.ready_to_load_host_cache() == controller.layer_done_counter.producer_index != -1
    rig.drain()
    assert rig.cache.ready_to_load_host_cache() == -1
    rig.check()


def test_the_share_of_the_pool_holds_until_what_was_brought_is_used():
    rig, fresh = open_rig(load_back_pool_fraction=0.125, load_back_step_tokens=2048), fresh_prompts()
    systems = [share(rig, fresh, 200) for _ in range(3)]
    to_host(rig, systems[0])
    budget = DEVICE_TOKENS // 8
    assert budget - load_back._MIN_TOKENS < sum(order(rig)["tokens"] for _ in range(6)) <= budget
    wait(rig, 3.0)
    brought = next(system for system in systems if hit(rig.cache, system) == 200)
    ask(rig, brought + fresh(16))
    assert order(rig)["tokens"] > 100
    rig.close()


def test_what_the_policy_would_rather_keep_does_not_give_way():
    rig, fresh = open_rig(load_back_step_tokens=2048), fresh_prompts()
    system = share(rig, fresh)
    to_host(rig, system)
    fill(rig, fresh)
    assert rig.allocator.available_size() < 64
    before = set(rig.core._node_arena)
    # One-shot prompts have just come: which of them goes for the hotspot is for the policy to say.
    moved = order(rig)
    first = rig.core.evictable_device_leaves.first()
    hosted = [node for node in rig.core.path_to(rig.core.find_hotspots()[0].node) if node.evicted]
    assert moved["tokens"] > 0 or rig.core.rank(first) >= min(map(rig.core.rank, hosted))
    assert before <= set(rig.core._node_arena), "something was dropped for what nobody has asked for"
    # An hour later the one-shots are worth less than the hotspot by any policy.
    wait(rig, 60.0)
    fill(rig, fresh, 512)
    for _ in range(8):
        order(rig)
    assert rig.core.num_evictions["device"] > 0
    rig.close()


def test_a_leaf_without_a_copy_on_the_host_never_gives_way():
    rig, fresh = open_rig(load_back_step_tokens=2048), fresh_prompts()
    system = share(rig, fresh)
    to_host(rig, system)
    rig.cache.write_through_threshold = 10**9  # from now on nothing is backed up
    fill(rig, fresh)
    wait(rig, 3000.0)
    room = rig.allocator.available_size()
    assert order(rig)["tokens"] <= room
    rig.close()


def test_a_conversation_that_the_law_expects_soon_comes_back_and_an_old_one_does_not():
    rig, fresh = open_rig(hotspot_queries=1000), fresh_prompts()
    talk = fresh(200)
    wait(rig, 1.0)
    ask(rig, talk)
    to_host(rig, talk)
    wait(rig, 2.0)
    assert rig.core.load_back._expected() and order(rig)["tokens"] == 200
    assert ask(rig, talk + fresh(20)) == 200
    to_host(rig, talk)
    wait(rig, 3000.0)
    assert order(rig) == {"state": "nothing", "tokens": 0}
    rig.close()


def test_what_was_brought_in_vain_is_not_brought_again_at_once(monkeypatch):
    rig, fresh = open_rig(), fresh_prompts()
    system = share(rig, fresh, 128)
    to_host(rig, system)
    assert order(rig)["tokens"] >= 128
    to_host(rig, system)
    assert order(rig) == {"state": "nothing", "tokens": 0}
    assert rig.core.stats()["load_back"]["lost_tokens"] >= 128
    wait(rig, load_back._AGAIN_AFTER_S + 1)
    assert order(rig)["tokens"] >= 128
    rig.close()


def found_on_device(is_on: bool, seed: int) -> float:
    """The share of prompt tokens that agents find on the device at admission, on a cache without a model."""
    rig = open_rig(hotspot_queries=20, load_back_step_tokens=2048)
    num_found = num_asked = 0
    for at_s, prompt in arrivals(seed, num_sessions=6):
        while rig.at_s + 0.5 < at_s:
            wait(rig, 0.5)
            while is_on and step(rig)["tokens"]:
                pass
        wait(rig, at_s - rig.at_s)
        num_found += hit(rig.cache, prompt)
        num_asked += len(prompt)
        ask(rig, prompt)
    rig.check()
    rig.close()
    return num_found / num_asked


@pytest.mark.parametrize("seed", range(3))
def test_agents_whose_prompts_exceed_the_device_find_more_of_them_on_it(seed):
    assert found_on_device(True, seed) > found_on_device(False, seed)


def test_tenants_are_counted_apart():
    rig, fresh = open_rig(), fresh_prompts()
    system = share(rig, fresh, num_talks=6, salt="a")
    for _ in range(6):
        wait(rig, 2.0)
        ask(rig, system + fresh(32), "b")
    # Twelve requests in all, six of each: neither tenant has ten.
    assert rig.core.find_hotspots() == []
    for _ in range(4):
        wait(rig, 2.0)
        ask(rig, system + fresh(32), "b")
    (found,) = rig.core.hotspot_prompts(10, 10**6)
    assert (found["cache_salt"], found["input_ids"], found["queries"]) == ("b", system, 10)
    rig.close()


def test_a_flush_forgets_all_of_it(rig):
    system = share(rig, fresh_prompts())
    to_host(rig, system)
    order(rig)
    rig.cache.reset()
    assert rig.core.load_back.step(is_idle=True) == {"state": "nothing", "tokens": 0}
    assert rig.core.find_hotspots() == []


def test_a_command_reaches_the_step_and_moves_the_clock_of_an_idle_server(rig):
    system = share(rig, fresh_prompts())
    to_host(rig, system)
    now_s = rig.core.clock.now_s()
    rid = 'radiximp:{"name": "load_back", "now_s": %f}' % (1e9 + rig.at_s + 5)
    assert commands.answer(rig.core, rid, lambda: False)["state"] == "busy"
    assert rig.core.clock.now_s() == now_s
    assert commands.answer(rig.core, rid, lambda: True)["state"] == "brought"
    assert rig.core.clock.now_s() == pytest.approx(now_s + 5)
    rig.drain()
    rig.check()


@pytest.mark.parametrize("write_policy", ["write_through", "write_back"])
@pytest.mark.parametrize("seed", range(3))
def test_random_requests_and_steps_leave_every_invariant_and_all_kv_right(seed, write_policy):
    rng = random.Random(seed)
    rig, fresh = open_rig(16, write_policy, hotspot_queries=5, load_back_pool_fraction=0.5), fresh_prompts()
    systems = [fresh(rng.randrange(64, 400)) for _ in range(4)]
    talks = [list(rng.choice(systems)) for _ in range(8)]
    for _ in range(100):
        wait(rig, rng.choice([0.1, 1.0, 20.0]))
        if rng.random() < 0.4:
            order(rig)
            continue
        number = rng.randrange(len(talks))
        talks[number] += fresh(rng.randrange(10, 80))
        if len(talks[number]) > 1200:
            talks[number] = [*rng.choice(systems), *fresh(40)]
        if rng.random() < 0.3:
            rig.core.load_back.step(is_idle=True)  # the request overtakes its copies
        ask(rig, talks[number])
        rig.check()
    # Under write_back no victim has a copy, so only free memory is taken, and there may be none.
    assert rig.core.load_back.num_tokens > 0 or write_policy == "write_back"
    rig.close()


@pytest.mark.parametrize("extra_key", [None, "", "tenant", "\x00lora:3:abc", "\x00plain:x"])
@pytest.mark.parametrize("lora_id", [None, "0123456789abcdef"])
def test_a_namespace_is_parted_into_what_it_was_joined_of(extra_key, lora_id):
    assert parted(joined(extra_key, lora_id)) == (extra_key, lora_id)


def test_without_a_host_tier_it_is_refused():
    cache = build_cache(256, config={"load_back": True})
    with pytest.raises(LoadBackError, match="add --enable-hierarchical-cache"):
        cache.tree_core.start_load_back(cache)


def test_ranks_bring_the_same_and_evict_the_same(tmp_path):
    arguments = (str(tmp_path / "rendezvous"), str(tmp_path / "told"))
    multiprocessing.spawn(serve, args=arguments, nprocs=2)
    told = [(tmp_path / f"told{rank}").read_text() for rank in range(2)]
    assert told[0] == told[1] and "brought" in told[0]


def serve(rank: int, rendezvous: str, told: str) -> None:
    """One rank: the same orders at the same places between requests, and a different number of other looks."""
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    rng, replies = random.Random(7), []
    rig, fresh = open_rig(16, hotspot_queries=5), fresh_prompts()
    systems = [fresh(200) for _ in range(4)]
    for number in range(100):
        wait(rig, rng.choice([0.2, 3.0]))
        ask(rig, rng.choice(systems) + fresh(100))
        if number % 10 == 9:
            evict_all(rig)
        for _ in range(rank * (number % 3)):
            rig.core.hotspots(), rig.core.stats()
        if rng.random() < 0.4:
            replies.append(order(rig))
    with open(f"{told}{rank}", "w") as file:
        file.write(f"{replies} {rig.core.victim_digest} {rig.core.load_back.stats()}")
    rig.close()
    dist.destroy_process_group()
