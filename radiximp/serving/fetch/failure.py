"""A load-back that fails: what it promised is taken back, and its requests compute it instead.

The copies of a batch start after its requests are admitted and before anything is allocated for them. So the batch is
undone: locks released, loaded nodes back to the host alone, requests back in the queue, marked not to fetch again.
All ranks undo it if one of them must.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from sglang.srt.mem_cache.unified_cache.components import BASE_COMPONENT_TYPE

from radiximp.serving.fetch.costs import FetchCosts, fetch_costs_of

logger = logging.getLogger(__name__)


class FetchFailed(RuntimeError):
    """The copy of a batch's host prefixes to the device failed, on this rank or another."""

    def __init__(self, operations: list) -> None:
        super().__init__(f"{len(operations)} load-backs failed")
        self.operations = operations


def start_loads(ready_to_load: Callable, cache) -> int:
    """Around `UnifiedRadixCache.ready_to_load_host_cache`: times it; raises FetchFailed on all ranks if it failed on one."""
    fetch = fetch_costs_of(cache)
    operations = [] if fetch is None else list(cache.cache_controller.load_queue)
    if not operations:
        return ready_to_load(cache)
    controller = cache.cache_controller
    num_started = len(controller.ack_load_queue)
    error: Exception | None = None
    begun_s = time.perf_counter()
    try:
        producer = ready_to_load(cache)
    except Exception as raised:  # any backend's; it is logged, and the batch is undone
        error = raised
        logger.error("radiximp: loading %s tokens from the host failed", _tokens(operations), exc_info=raised)
    took_s = time.perf_counter() - begun_s
    if not fetch.has_failed_somewhere(error is not None):
        fetch.note_load(controller.ack_load_queue[-1], took_s)
        return producer
    controller.load_queue.clear()
    for ack in controller.ack_load_queue[num_started:]:
        ack.finish_event.synchronize()
    del controller.ack_load_queue[num_started:]
    raise FetchFailed(operations) from error


def start_own_loads(cache) -> bool:
    """Start what was queued on behalf of no request; False if it failed, and all of it is on the host alone again."""
    try:
        cache.ready_to_load_host_cache()
    except FetchFailed as failure:
        take_back(fetch_costs_of(cache), failure.operations)
        return False
    return True


def _tokens(operations: list) -> int:
    return sum(len(operation.device_indices) for operation in operations)


def get_batch(get_new_batch: Callable, scheduler, *args, **kwargs) -> Any:
    """Around `Scheduler._get_new_batch_prefill_raw`: after a failed load there is no new batch this time."""
    try:
        return get_new_batch(scheduler, *args, **kwargs)
    except FetchFailed as failure:
        fetch = fetch_costs_of(scheduler.tree_cache)
        requeued = withdraw(fetch, scheduler)
        take_back(fetch, failure.operations)
        logger.warning(
            "radiximp: %d requests go on without the %d tokens that could not be fetched",
            len(requeued),
            _tokens(failure.operations),
        )
        return None, kwargs["running_batch"]


def withdraw(fetch: FetchCosts, scheduler) -> list:
    """Undo the admissions of this pass; returns the requests, which are first in the queue again."""
    cache, admitted = fetch.cache, fetch.admitted
    chunked = scheduler.chunked_req
    if chunked is not None:
        chunked.inflight_middle_chunks -= 1
    # A request that was begun before keeps its chunks and its lock, whether this batch had its next chunk or not.
    begun = [request for request in (*fetch.adder.can_run_list, chunked) if request not in (None, *admitted)]
    scheduler.chunked_req = begun[0] if begun else None
    for request in admitted:
        cache.unlock(request.lock)
        request.lock = None
        if request.host_loaded_length:
            request.radiximp_fetch_failed = True
            request.host_loaded_length = 0
    scheduler.waiting_queue = [*admitted, *scheduler.waiting_queue]
    fetch.adder, fetch.admitted = None, []
    return admitted


def take_back(fetch: FetchCosts, operations: list) -> None:
    """Free the device slots of load-backs that did not happen; their nodes are on the host alone again."""
    cache, core = fetch.cache, fetch.cache.tree_core
    fetch.counts["fetch_failed"] += len(operations)
    anchors = [node_id for operation in operations for node_id in operation.node_ids]
    slots = {slot for operation in operations for slot in operation.device_indices.tolist()}
    for node_id in anchors:
        node, lock, host_lock = cache.ongoing_load_back.pop(node_id)
        cache.dec_lock_ref(node, lock)
        cache.dec_host_lock_ref(node, host_lock)
        core.finish_load_back(node)
    anchors.sort(key=lambda node_id: core._depth_from_root(core.node_by_id(node_id)), reverse=True)
    for node_id in anchors:
        node = core.node_by_id(node_id)
        while node is not core.root_node and not node.evicted:
            if node.component_data[BASE_COMPONENT_TYPE].value[0].item() not in slots:
                break
            cache._demote(node.id, defaultdict(int))
            node = node.parent
