"""Random operations on both tiers against a plain model, every invariant checked after each step."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.unified_cache.components import ComponentType

from radiximp.policy.clock import ManualClock
from tests.sglang.builders import hit, key_of, lookup
from tests.sglang.kv_rig import KvRig

SALTS = (None, "tenant-a", "tenant-b")
# Few first tokens and short runs, so that prompts share prefixes and split each other.
prompts = st.lists(st.integers(0, 3), min_size=1, max_size=5).flatmap(
    lambda heads: st.integers(1, 9).map(lambda run: [h * 100 + i for h in heads for i in range(run)])
)

traffic = st.lists(st.tuples(prompts, st.sampled_from(SALTS)), min_size=2, max_size=8)


class TwoTierCache(RuleBasedStateMachine):
    """The model: every prompt ever inserted, per namespace; and the pins that must hold."""

    @initialize(
        page_size=st.sampled_from([1, 4]),
        write_policy=st.sampled_from([None, "write_through", "write_through_selective", "write_back"]),
        layout=st.sampled_from(["layer_first", "page_first_direct"]),
        half_life_s=st.sampled_from([0, 300]),
        trim_tokens=st.sampled_from([0, 1, 8]),
    )
    def build(self, page_size, write_policy, layout, half_life_s, trim_tokens):
        self.rig = KvRig(
            64,
            page_size,
            config={"half_life_s": half_life_s, "trim_tokens": trim_tokens},
            write_policy=write_policy,
            mem_layout=layout,
        )
        self.core = self.rig.core
        self.core.clock = self.clock = ManualClock()
        self.inserted: set[tuple] = set()
        self.running: list = []

    def teardown(self):
        if hasattr(self, "rig"):
            self.rig.drain()
            self.rig.close()

    def longest_possible(self, tokens, salt) -> int:
        def common(other):
            n = 0
            for a, b in zip(tokens, other, strict=False):
                if a != b:
                    break
                n += 1
            return n

        return max((common(other) for s, other in self.inserted if s == salt), default=0)

    def _serve(self, batch):
        """Most steps are traffic: a few requests come, the older ones finish."""
        for tokens, salt in batch:
            possible = self.longest_possible(tokens, salt)
            started = self.rig.start(tokens, salt)
            if started is not None:
                handle, num_hit = started
                assert num_hit <= possible
                self.inserted.add((salt, tuple(tokens)))
                self.running.append(handle)
                assert hit(self.rig.cache, tokens, cache_salt=salt) == self.rig.align(len(tokens))
            while len(self.running) > 2:
                self.rig.finish(self.running.pop(0))

    serve = rule(batch=traffic)(_serve)
    serve_more = rule(batch=traffic)(lambda self, batch: self._serve(batch))
    serve_even_more = rule(batch=traffic)(lambda self, batch: self._serve(batch))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99))
    def finish(self, which):
        self.rig.finish(self.running.pop(which % len(self.running)))

    @rule(tokens=prompts, salt=st.sampled_from(SALTS))
    def look_up(self, tokens, salt):
        assert lookup(self.rig.cache, tokens, cache_salt=salt) <= self.longest_possible(tokens, salt)

    @rule(tokens=prompts, salt=st.sampled_from(SALTS), density=st.floats(0, 20))
    def observe(self, tokens, salt, density):
        num_pages = self.rig.align(len(tokens)) // self.rig.page_size
        self.core.observe(key_of(tokens, cache_salt=salt), [density] * num_pages)

    @rule(tokens=prompts, salt=st.sampled_from(SALTS), ttl_s=st.sampled_from([None, 5, 50]))
    def pin(self, tokens, salt, ttl_s):
        on_device = hit(self.rig.cache, tokens, cache_salt=salt)
        assert self.core.pin(key_of(tokens, cache_salt=salt), ttl_s) <= on_device

    @rule(tokens=prompts, salt=st.sampled_from(SALTS))
    def unpin(self, tokens, salt):
        self.core.unpin(key_of(tokens, cache_salt=salt))

    @rule(seconds=st.sampled_from([0.01, 1, 10, 100]))
    def wait(self, seconds):
        self.clock.advance(seconds)

    @rule(num_tokens=st.integers(1, 40))
    def evict_device(self, num_tokens):
        evictable = self.core.evictable_size()
        result = self.rig.cache.evict(EvictParams(num_tokens=num_tokens))
        if not self.rig.has_host:
            assert result.num_tokens_evicted >= min(num_tokens, evictable)

    @precondition(lambda self: self.rig.has_host)
    @rule(num_tokens=st.integers(1, 40))
    def evict_host(self, num_tokens):
        self.rig.cache.evict_host(num_tokens)

    @precondition(lambda self: self.rig.has_host)
    @rule(which=st.integers(0, 99))
    def back_up(self, which):
        nodes = [
            node
            for node in self.core._node_arena.values()
            if node is not self.core.root_node
            and node.component_data[ComponentType.FULL].value is not None
            and not node.backuped
            and node.write_through_pending_id is None
        ]
        if nodes and not self.core.is_write_back:
            action = self.core.build_backup_kv_action(nodes[which % len(nodes)].id)
            self.rig.cache._apply_cache_actions([action])

    @rule()
    def drain(self):
        self.rig.drain()

    @precondition(lambda self: not self.running)
    @rule()
    def flush(self):
        self.rig.drain()
        self.rig.allocator.clear()
        self.rig.cache.reset()
        self.inserted.clear()
        assert self.core.pinned_tokens == 0 and len(self.core.ghosts) == 0

    @rule()
    def questions_change_nothing(self):
        self.core.settle()
        before = self.core.stats()
        self.core.hotspots()
        self.core.dry_run(10_000)
        after = self.core.stats()
        before.pop("scorer_calls"), after.pop("scorer_calls")
        assert before == after

    @invariant()
    def everything_holds(self):
        if hasattr(self, "rig"):
            self.rig.drain()
            self.rig.check()


@pytest.mark.parametrize("num_examples, num_steps", [(48, 50)])
def test_two_tiers_hold_every_invariant(num_examples, num_steps):
    run_state_machine_as_test(
        TwoTierCache,
        settings=settings(
            max_examples=num_examples,
            stateful_step_count=num_steps,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
