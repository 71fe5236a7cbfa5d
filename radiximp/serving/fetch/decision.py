"""Before a request is admitted: how much of its host prefix is fetched, the rest being computed again.

SGLang fetches all that the host holds, from 10 tokens up. We shorten what the match promised before SGLang plans the
admission, so its budgets, locks and counters see an ordinary shorter host hit.
"""

from __future__ import annotations

from collections.abc import Callable

from sglang.srt.session.streaming_session import is_virtual_node

from radiximp.cost.calibration import PrefillBatch
from radiximp.cost.live import HOST, STORAGE
from radiximp.serving.fetch.costs import FetchCosts, fetch_costs_of


def admit(add_one_req: Callable, adder, request, *args, **kwargs):
    """Around `PrefillAdder.add_one_req`."""
    fetch = fetch_costs_of(adder.tree_cache)
    if fetch is None:
        return add_one_req(adder, request, *args, **kwargs)
    if fetch.adder is not adder:
        fetch.adder, fetch.admitted = adder, []
    depth, found = request.prefix_len, request.host_hit_length
    # A load for the batch is made in any case, and its latency is paid.
    shares_a_load = bool(fetch.cache.cache_controller.load_queue)
    if found:
        wanted = _wanted_tokens(fetch, adder, request, shares_a_load)
        if wanted < found:
            shorten(fetch.cache, request, wanted)
    request.host_loaded_length = 0
    result = add_one_req(adder, request, *args, **kwargs)
    if adder.can_run_list and adder.can_run_list[-1] is request:
        fetch.admitted.append(request)
        if found:
            _count(fetch, depth, found, request.host_loaded_length, shares_a_load)
    return result


def _wanted_tokens(fetch: FetchCosts, adder, request, shares_a_load: bool) -> int:
    found = request.host_hit_length
    if fetch.mode == "recompute" or getattr(request, "radiximp_fetch_failed", False):
        return 0
    if fetch.mode == "measure":
        return found
    split = fetch.costs.best(
        request.prefix_len,
        found,
        len(request.full_untruncated_fill_ids) - request.prefix_len - found,
        PrefillBatch.of(
            [(other.extend_end - other.prefix_len, other.prefix_len) for other in adder.can_run_list]
        ),
        fetch.in_flight_s(),
        shares_a_load=shares_a_load,
    )
    return found if split is None else split.num_fetched_tokens


def shorten(cache, request, num_tokens: int) -> None:
    """Have the request's host hit end after its first `num_tokens` (whole pages); no more than a cut of a node.

    Leaves the request as it is where its path is not plainly host nodes behind its device prefix (a session's).
    """
    if is_virtual_node(request.last_node) or is_virtual_node(request.best_match_node):
        return
    core = cache.tree_core
    path, node = [], core.node_by_id(request.best_match_node)
    while node is not core.root_node and node.evicted:
        path.append(node)
        node = node.parent
    if node.id != request.last_node or sum(len(node.key) for node in path) != request.host_hit_length:
        return
    end, kept = node, 0
    for node in reversed(path):
        rest = num_tokens - kept
        if rest <= 0:
            break
        if rest < len(node.key):
            if node.write_through_pending_id is not None or node.load_back_pending_id is not None:
                break  # a copy of this node is under way, by its id
            node, action = core._split_node(node.key, node, rest)
            if action is not None:
                cache._apply_cache_actions([action])
        end, kept = node, kept + len(node.key)
    request.best_match_node, request.host_hit_length = end.id, kept


def _count(fetch: FetchCosts, depth: int, found: int, loaded: int, shares_a_load: bool) -> None:
    choice = "fetch_all" if loaded >= found else "fetch_part" if loaded else "recompute_all"
    fetch.counts[choice] += 1
    fetch.counts["host_tokens_fetched"] += loaded
    fetch.counts["host_tokens_recomputed"] += max(0, found - loaded)
    if loaded:
        fetch.costs.note_fetched(loaded, loaded >= found, shares_a_load)
    else:
        fetch.costs.note_declined(HOST, depth, found)


def prefetch(
    prefetch_from_storage: Callable, cache, request, last_host_node_id, new_input_tokens, *args, **kwargs
):
    """Around `UnifiedRadixCache.prefetch_from_storage`: not where a prefill would be over before."""
    fetch = fetch_costs_of(cache)
    if fetch is not None and fetch.mode != "measure":
        depth = len(kwargs.get("matched_prefix_tokens") or ())
        is_wanted = fetch.mode == "cost" and fetch.costs.is_storage_worth_it(depth, len(new_input_tokens))
        if not is_wanted:
            fetch.counts["prefetch_declined"] += 1
            fetch.costs.note_declined(STORAGE, depth, len(new_input_tokens))
            return None
        fetch.costs.note_asked()
    return prefetch_from_storage(cache, request, last_host_node_id, new_input_tokens, *args, **kwargs)


def is_too_late(result: bool, cache, operation) -> bool:
    """After `UnifiedRadixCache._prefetch_deadline_expired`: a request waits for its prefetch no longer than the prefill
    of all that is to come would take. SGLang asks all ranks and ends the wait where one says so."""
    fetch = fetch_costs_of(cache)
    if result or fetch is None or fetch.mode != "cost":
        return result
    wait = cache._storage_prefetch_wait.get(operation.handle)
    if wait is None or not wait.timer.running:
        return result
    # How much storage holds is known once it was asked.
    was_asked = operation.host_indices is not None
    expected = len(operation.hash_value) * cache.page_size if was_asked else len(operation.token_ids)
    has_landed = was_asked and operation.completed_tokens >= expected
    limit_s = fetch.costs.recompute_s(operation.storage_start, expected)
    if has_landed or limit_s is None or wait.timer.elapsed() <= limit_s:
        return result
    if not getattr(operation, "radiximp_is_late", False):
        operation.radiximp_is_late = True
        fetch.counts["prefetch_late"] += 1
    return True
