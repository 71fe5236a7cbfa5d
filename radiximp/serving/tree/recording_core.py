"""The tree core that writes down what is done to it, in place of `ImportanceTreeCore` where `record_path` is set.

It only listens: every override does what its base does, and notes it. Nodes are named by the order in which they
were made since the last flush, which a replay that takes the same decisions reproduces.
"""

from __future__ import annotations

import dataclasses

import sglang
from sglang.srt.mem_cache.unified_cache.components import BASE_COMPONENT_TYPE
from sglang.srt.mem_cache.unified_cache.unified_tree_core import _InsertPhase

from radiximp import __version__
from radiximp.replay.record_format import FORMAT, VERSION
from radiximp.serving.tree.core import ImportanceTreeCore
from radiximp.serving.tree.recorder import OperationRecorder
from radiximp.serving.tree.use_log import UseLog, token_ids_of

FULL = BASE_COMPONENT_TYPE
_ADVANCE = ("advance",)


class _RecordedUses(UseLog):
    def _record(self, node, query, now_s, counted_tokens, session_id, end) -> None:
        super()._record(node, query, now_s, counted_tokens, session_id, end)
        if query is None:
            self._core.note("warm", node.number, now_s)
            return
        # A session is noted as a number that says no more than that it is the same one.
        session = None if session_id is None else self.session_hash(session_id)
        self._core.note("use", node.number, query, now_s, counted_tokens, session, end)


class RecordingTreeCore(ImportanceTreeCore):
    """An operation costs a line; a match and an insert also O(pages)."""

    def __init__(self, params, components) -> None:
        self.recorder: OperationRecorder | None = None
        self._noted_s = 0.0
        self._last: tuple = ()
        super().__init__(params, components)
        self.uses = _RecordedUses(self)
        self.recorder = OperationRecorder(self.config.record_path, self._header(), self.page_size)
        refusal = self._refusal()
        if refusal:
            self.recorder.stop(refusal)

    def _header(self) -> dict:
        config = dataclasses.asdict(self.config)
        del config["record_path"], config["law_path"], config["hotspots_file"]
        return {
            "format": FORMAT,
            "version": VERSION,
            "radiximp": __version__,
            "sglang": sglang.__version__,
            "page_tokens": self.page_size,
            "pool_tokens": self._pool_tokens,
            "config": config,
        }

    def start_serving(self, tool_call_parser: str | None, host_tokens: int, observed_layers=()) -> None:
        super().start_serving(tool_call_parser, host_tokens, observed_layers)
        self.note("capacity", max(self._pool_tokens, host_tokens))
        if self.law_file is not None:
            self.recorder.stop("a law of reuse that was learned before (law_path) is not recorded")
        if self.config.load_back:
            self.recorder.stop("what is brought to the device without a request (load_back) is not recorded")

    def _refusal(self) -> str | None:
        """Why this cache's victims do not follow from the operations that are recorded; None if they do."""
        others = [component.name for component in self.component_types if component != FULL]
        if others:
            return f"{' and '.join(others)} state is evicted in SGLang's own order, which no replay knows"
        if self.is_eagle:
            return "EAGLE's keys are pairs of tokens, which are not recorded"
        if self.enable_session_radix_cache:
            return "references of radix sessions rank before scores and are not recorded"
        return None

    def note(self, *operation) -> None:
        """Write an operation, and before it the time where that has moved."""
        if self.recorder is None:
            return
        now_s = self.clock.now_s()
        if now_s != self._noted_s:
            self._noted_s = now_s
            self.recorder.note("at", now_s)
        elif operation == self._last == _ADVANCE:
            return  # the second changes nothing, and an idle server asks often
        self._last = operation
        self.recorder.note(*operation)

    def _key(self, key) -> tuple[int, int, str]:
        return self.recorder.key(token_ids_of(key), (key.extra_key, key.cache_salt))

    def _pages(self, num_tokens: int) -> int:
        return num_tokens // self.page_size

    # ---- structure ----

    def reset(self) -> None:
        self._num_made = 0
        super().reset()
        self.note("flush")

    def _register_node(self, node) -> None:
        super()._register_node(node)
        node.number = self._num_made
        self._num_made += 1

    def _match_prefix_helper(self, key, params):
        result = super()._match_prefix_helper(key, params)
        hit = (self._pages(result.device_prefix_len), self._pages(result.full_kv_hit_length))
        self.note("match", *self._key(key), *hit)
        return result

    def begin_insert(self, params):
        key = params.key.page_aligned(self.page_size)
        if params.rotation_base is not None:
            self.recorder.stop("sharded pages are not recorded")
        if len(key):
            self.note("insert", *self._key(key))
        return super().begin_insert(params)

    def _advance_insert(self):
        result = super()._advance_insert()
        state = self._ongoing_insert_walk_state
        if state is not None and state.phase is _InsertPhase.WALK:
            # Suspended, and other operations may come in between.
            self.note("walk", self._pages(state.total_prefix_length))
        return result

    def _insert_commit_step(self, state) -> None:
        self.note("commit", self._pages(state.total_prefix_length))
        super()._insert_commit_step(state)

    def _remove_leaf_from_parent(self, node) -> None:
        self.note("remove", node.number)
        super()._remove_leaf_from_parent(node)

    # ---- locks ----

    def _note_lock(self, node_id, change: int, skipped=()) -> None:
        if FULL not in skipped and not self.is_root(node_id):
            self.note("lock", self.node_by_id(node_id).number, change)

    def inc_lock_ref(self, node_id, skip_lock_components=()):
        self._note_lock(node_id, 1, skip_lock_components)
        return super().inc_lock_ref(node_id, skip_lock_components)

    def dec_lock_ref(self, node_id, params, skip_swa=False):
        self._note_lock(node_id, -1, params.skipped_lock_components)
        return super().dec_lock_ref(node_id, params, skip_swa)

    def inc_full_pin(self, node_id) -> None:
        self._note_lock(node_id, 1)
        super().inc_full_pin(node_id)

    def dec_full_pin(self, node_id) -> None:
        self._note_lock(node_id, -1)
        super().dec_full_pin(node_id)

    def _note_host_lock(self, name: str, node_id, receipt) -> None:
        boundary = receipt.component_host_lock_uuids.get(FULL)
        if boundary is not None and not self.is_root(node_id):
            self.note(name, self.node_by_id(node_id).number, boundary)

    def inc_host_lock_ref(self, node_id):
        result = super().inc_host_lock_ref(node_id)
        self._note_host_lock("lock_host", node_id, result)
        return result

    def dec_host_lock_ref(self, node_id, params):
        self._note_host_lock("unlock_host", node_id, params)
        return super().dec_host_lock_ref(node_id, params)

    # ---- attention ----

    def _note_observation(self, node, density: float, num_tokens: int, is_top: bool) -> None:
        super()._note_observation(node, density, num_tokens, is_top)
        self.note("observe", node.number, density, num_tokens, is_top)

    # ---- victims and tiers ----

    def settle(self) -> None:
        super().settle()
        self.note(*_ADVANCE)

    def note_held(self) -> None:
        super().note_held()
        self.note("held", len(self._node_arena))

    def forget(self) -> None:
        super().forget()
        self.note("forget")

    def start_walk(self, request_tokens: int):
        walk = super().start_walk(request_tokens)
        self.note("evict", request_tokens, self.shortfall_tokens)
        return walk

    def next_victim(self, walk, freed_tokens: int, cache_actions: list):
        victim = super().next_victim(walk, freed_tokens, cache_actions)
        found = (None, 0) if victim is None else (victim.number, self._pages(len(victim.key)))
        self.note("victim", freed_tokens, *found)
        return victim

    def note_victim(self, node, tier: str) -> None:
        super().note_victim(node, tier)
        if tier == "host":
            self.note("host_victim", node.number, self._pages(len(node.key)))

    def _demote(self, node, *args, **kwargs) -> None:
        super()._demote(node, *args, **kwargs)
        self.note("demote", node.number)

    def commit_backup(self, node_id, host_indices, comp_xfers) -> None:
        super().commit_backup(node_id, host_indices, comp_xfers)
        if host_indices.numel() > 0:
            self.note("back_up", self.node_by_id(node_id).number)

    def commit_load_back(self, node_id, device_indices, kv_xfer, comp_xfers):
        actions = super().commit_load_back(node_id, device_indices, kv_xfer, comp_xfers)
        self.note("load_back", [self.node_by_id(loaded).number for loaded in kv_xfer.nodes_to_load or ()])
        return actions

    def _release_full_host_duplicate(self, node, *args, **kwargs) -> None:
        super()._release_full_host_duplicate(node, *args, **kwargs)
        self.note("drop_host", node.number)

    # ---- what is not recorded, and what flushes the file ----

    def place_pin(self, key, pin) -> int:
        self.recorder.stop("pins are not recorded")
        return super().place_pin(key, pin)

    def let_go_first(self, key, keep_tokens: int = 0) -> int:
        self.recorder.stop("what is told to go first is not recorded")
        return super().let_go_first(key, keep_tokens)

    def insert_host(self, node_id, key, host_value, hash_value):
        self.recorder.stop("what comes from storage is not recorded")
        return super().insert_host(node_id, key, host_value, hash_value)

    def stats(self) -> dict:
        """As the base class; the record is complete up to here."""
        found = super().stats()
        self.recorder.flush()
        return found
