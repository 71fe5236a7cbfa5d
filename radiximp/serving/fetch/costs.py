"""Measures a server's own transfers and prefill batches, and tells every rank the same of them.

Nothing waits for an accelerator that would not be waited for anyway: copies are read when SGLang reaps them, batches when
their results are processed. A sample is the slowest rank's, in whole microseconds: one small reduction per batch of
samples, at steps that all ranks reach with the same samples. Owned by the scheduler thread.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from radiximp.cost.calibration import PrefillBatch
from radiximp.cost.live import HOST, STORAGE, LiveCosts
from radiximp.cost.predict import CachedState
from radiximp.policy.gittins import GittinsPolicy

if TYPE_CHECKING:
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

logger = logging.getLogger(__name__)

# Read by the thread that talks to the storage: whether anybody in this process wants its times.
is_measuring = False
_MAX_TIMED = 64


class FetchCosts:
    """What one tree's server has measured, and what became of its requests' host prefixes.

    mode: "measure" observes only, "cost" decides by cost, "recompute" never fetches.
    """

    def __init__(self, cache: UnifiedRadixCache, mode: str) -> None:
        self.cache = cache
        self.mode = mode
        controller = cache.cache_controller
        self.is_synchronous = torch.device(cache.device).type == "cpu"
        self.costs = LiveCosts(
            CachedState(
                controller.mem_pool_host.size_per_token, num_layers=controller.layer_done_counter.num_layers
            ),
            cache.page_size,
            is_overlapped=not self.is_synchronous,
        )
        self.counts: Counter[str] = Counter()
        # Of the current pass over the waiting queue.
        self.adder: Any = None
        self.admitted: list = []
        self._batch: PrefillBatch | None = None
        self._batch_start: Any = None
        # (ack, seconds) of copies that were over when they were started; a flush drops acks that nobody reaps
        self._timed_loads: deque[tuple[Any, float]] = deque(maxlen=_MAX_TIMED)
        self._waiting: list[tuple[str, Any, float, float]] = []

    # ---- prefill batches ----

    def begin_batch(self, batch, stream) -> None:
        """A batch is about to be launched on `stream`."""
        self._batch = None
        if batch.forward_mode != ForwardMode.EXTEND or not batch.extend_lens:
            return
        if batch.hicache_consumer_index >= 0 and not self.is_synchronous:
            return  # its layers wait for their loads
        self._batch = PrefillBatch.of(list(zip(batch.extend_lens, batch.prefix_lens, strict=True)))
        self._batch_start = self._now(stream)

    def end_batch(self, result, stream) -> None:
        """The batch was launched (on a CPU: it is computed)."""
        if self._batch is not None and self._batch.num_tokens:
            result.radiximp_prefill = (self._batch, self._batch_start, self._now(stream))
        self._batch = None

    def _now(self, stream) -> Any:
        if self.is_synchronous:
            return time.perf_counter()
        event = torch.get_device_module(self.cache.device).Event(enable_timing=True)
        event.record(stream)
        return event

    def conclude_batch(self, result) -> None:
        """The batch's results were processed: its forward pass is over."""
        timed = getattr(result, "radiximp_prefill", None)
        if timed is None:
            return
        batch, start, end = timed
        if self.is_synchronous:
            seconds = end - start
        else:
            end.synchronize()  # recorded right after what the results were waited for
            seconds = start.elapsed_time(end) / 1e3
        self._waiting.append(("prefill", batch, seconds, 0.0))
        self.share()

    # ---- transfers ----

    def note_load(self, ack, seconds: float) -> None:
        """A load-back was started; `seconds` are all it took where the copy is synchronous."""
        if self.is_synchronous:
            self._timed_loads.append((ack, seconds))

    def reaped(self, acks: list) -> None:
        """These load-backs are over, on all ranks."""
        for ack in acks:
            seconds = next((seconds for timed, seconds in self._timed_loads if timed is ack), 0.0)
            if ack.timing_enabled:
                seconds = ack.start_event.elapsed_time(ack.finish_event) / 1e3
            if ack.num_tokens:
                self._waiting.append((HOST, ack.num_tokens, seconds, 0.0))
        if acks:
            self.share()

    def prefetched(self, operation) -> None:
        """A prefetch from storage is over, whole or in part, on all ranks."""
        if operation.completed_tokens:
            begun_s = getattr(operation, "radiximp_begun_s", None)
            took_s = getattr(operation, "radiximp_took_s", None)
            if begun_s is not None and took_s is None:
                took_s = time.monotonic() - begun_s
            queue_s = 0.0 if begun_s is None else begun_s - operation.start_time
            self._waiting.append((STORAGE, operation.completed_tokens, took_s or 0.0, queue_s))

    def in_flight_s(self) -> float:
        """Predicted seconds of the load-backs that were not yet reaped: at most what a new one waits for."""
        if self.is_synchronous:
            return 0.0
        host = self.costs.tiers[HOST]
        acks = self.cache.cache_controller.ack_load_queue
        return sum(host.latency_s + ack.num_tokens * host.s_per_token for ack in acks)

    # ---- the same on every rank ----

    def share(self) -> None:
        """Learn from what waits, each sample as slow as on the slowest rank. All ranks call it at the same step."""
        waiting, self._waiting = self._waiting, []
        times = [round(seconds * 1e6) for *_, took_s, queue_s in waiting for seconds in (took_s, queue_s)]
        times = self._slowest(times)
        for number, (kind, what, _, _) in enumerate(waiting):
            seconds, queue_s = times[2 * number] / 1e6, times[2 * number + 1] / 1e6
            if seconds <= 0:
                continue  # below a microsecond, or not timed
            if kind == "prefill":
                self.costs.prefill.note(what, seconds)
            else:
                self.costs.note_transfer(kind, what, seconds, queue_s)
        self._tell_policy()

    def _tell_policy(self) -> None:
        """A leaf that can be fetched back is cheaper to lose than one that must be computed again."""
        share = self.costs.restore_share()
        policy = self.cache.tree_core.policy
        if self.mode == "cost" and share is not None and isinstance(policy, GittinsPolicy):
            policy.note_restore_share(share)

    def _slowest(self, numbers: list[int]) -> list[int]:
        tensor = torch.tensor(numbers, dtype=torch.int64)
        self.cache._all_reduce_attn_groups(tensor, torch.distributed.ReduceOp.MAX)
        return tensor.tolist()

    def has_failed_somewhere(self, has_failed: bool) -> bool:
        """Whether a rank failed. All ranks call it at the same step."""
        return bool(self._slowest([int(has_failed)])[0])

    def describe(self) -> dict[str, Any]:
        """For `/radiximp/calibration`: plain JSON types."""
        return {"mode": self.mode, **self.costs.describe(), "requests": dict(sorted(self.counts.items()))}


def install(cache: UnifiedRadixCache) -> None:
    """Measure, and decide where the configuration says so. Raises ValueError where this cache cannot."""
    global is_measuring
    core = cache.tree_core
    mode = core.config.fetch_decision
    if mode == "stock":
        return
    reason = _why_not(cache)
    if reason is not None:
        raise ValueError(f"fetch_decision {mode}: {reason}; drop fetch_decision")
    is_measuring = True
    core.fetch_costs = FetchCosts(cache, mode)
    if mode == "cost" and isinstance(core.policy, GittinsPolicy):
        core.policy.is_backed_up = _has_copy
    logger.info("radiximp: fetch_decision %s", mode)


def _why_not(cache: UnifiedRadixCache) -> str | None:
    if cache.cache_controller is None or cache.linker is not None:
        return "there is no hierarchical cache"
    if cache.buffer_pipeline is not None:
        return "host memory is a buffer only"
    if len(cache.tree_core.components) > 1:
        return "the model has state beside full attention, which is fetched whole or not at all"
    if cache.pp_size > 1:
        return "pipeline stages would have to decide alike"
    return None


def _has_copy(node) -> bool:
    return node.backuped and not node.evicted


def fetch_costs_of(cache) -> FetchCosts | None:
    """The measurements of a tree cache, None where nothing is measured."""
    return getattr(getattr(cache, "tree_core", None), "fetch_costs", None)
