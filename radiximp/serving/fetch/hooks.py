"""Where measuring and deciding of fetches join SGLang's flow; with `fetch_decision` stock every hook returns at once."""

from __future__ import annotations

import time

from sglang.srt.plugins.hook_registry import HookType

from radiximp.serving.fetch import costs, decision, failure
from radiximp.serving.fetch.costs import fetch_costs_of


def fetch_hooks() -> list[tuple]:
    """(target, hook, kind) of each."""
    cache = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
    controller = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller.HybridCacheController"
    scheduler = "sglang.srt.managers.scheduler.Scheduler"
    return [
        (
            "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req",
            decision.admit,
            HookType.AROUND,
        ),
        (f"{cache}.ready_to_load_host_cache", failure.start_loads, HookType.AROUND),
        (f"{cache}.loading_check", _reap_loads, HookType.AROUND),
        (f"{cache}.prefetch_from_storage", decision.prefetch, HookType.AROUND),
        (f"{cache}._prefetch_deadline_expired", decision.is_too_late, HookType.AFTER),
        (f"{cache}._handle_prefetch_result", _prefetched, HookType.BEFORE),
        (f"{controller}._page_transfer", _time_pages, HookType.AROUND),
        (f"{scheduler}._get_new_batch_prefill_raw", failure.get_batch, HookType.AROUND),
        (f"{scheduler}.run_batch", _begin_batch, HookType.BEFORE),
        (f"{scheduler}.run_batch", _end_batch, HookType.AFTER),
        (f"{scheduler}.process_batch_result", _conclude_batch, HookType.AFTER),
    ]


def _reap_loads(loading_check, cache, *args, **kwargs):
    fetch = fetch_costs_of(cache)
    if fetch is None:
        return loading_check(cache, *args, **kwargs)
    waiting = list(cache.cache_controller.ack_load_queue)
    loading_check(cache, *args, **kwargs)
    fetch.reaped(waiting[: len(waiting) - len(cache.cache_controller.ack_load_queue)])


def _prefetched(cache, operation) -> None:
    fetch = fetch_costs_of(cache)
    if fetch is not None:
        fetch.prefetched(operation)


def _time_pages(page_transfer, controller, operation):
    # In the thread that talks to the storage.
    if not costs.is_measuring:
        return page_transfer(controller, operation)
    operation.radiximp_begun_s = time.monotonic()
    try:
        return page_transfer(controller, operation)
    finally:
        operation.radiximp_took_s = time.monotonic() - operation.radiximp_begun_s


def _begin_batch(scheduler, batch, *args, **kwargs) -> None:
    fetch = fetch_costs_of(scheduler.tree_cache)
    if fetch is not None:
        fetch.begin_batch(batch, stream_of(scheduler))


def _end_batch(result, scheduler, batch, *args, **kwargs) -> None:
    fetch = fetch_costs_of(scheduler.tree_cache)
    if fetch is not None:
        fetch.end_batch(result, stream_of(scheduler))


def stream_of(scheduler):
    """Where `run_batch` launches the forward pass."""
    return scheduler.forward_stream if scheduler.enable_overlap else scheduler.schedule_stream


def _conclude_batch(result, scheduler, batch, batch_result, *args, **kwargs) -> None:
    fetch = fetch_costs_of(scheduler.tree_cache)
    if fetch is not None:
        fetch.conclude_batch(batch_result)
