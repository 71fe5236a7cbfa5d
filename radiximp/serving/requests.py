"""What rides with a request between SGLang's processes: its arrival time and the label of warm traffic in, its cached tokens and our statistics out.

The arrival is stamped once, where the request enters, and is broadcast with it: a clock that reads
the same on every rank. (The name must not end in "time": SGLang shifts such fields by each process's
own clock.)
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX
from sglang.srt.observability import req_time_stats

from radiximp.serving.api import commands
from radiximp.serving.metrics.tally import USER, WARM

ARRIVAL_FIELD = "radiximp_arrival_s"

# Of requests that nobody asked for: they prefill what a pre-warm job names.
WARM_RID = "radiximp-prewarm-"

# A class attribute, so that SGLang's copying constructor carries the field from class to class.
setattr(req_time_stats.ReqTimeStatsBase, ARRIVAL_FIELD, 0.0)


# Of this process: ids of its own warm requests that run now.
_warm_rids: set[str] = set()


@contextmanager
def warm_rid() -> Iterator[str]:
    """An id of warm traffic, valid inside the block."""
    rid = f"{WARM_RID}{uuid.uuid4().hex}"
    _warm_rids.add(rid)
    try:
        yield rid
    finally:
        _warm_rids.discard(rid)


def check_rid(obj) -> None:
    """Refuse a client's request that calls itself warm, and so would count as nobody's; raises ValueError, which is a 400."""
    for rid in obj.rid if isinstance(obj.rid, list) else [obj.rid]:
        if str(rid).startswith(WARM_RID) and rid not in _warm_rids:
            raise ValueError(
                f"rid: expected one that does not begin with {WARM_RID!r}, as the server's own pre-warms do, got {str(rid)[:64]!r}"
            )


def is_warm(request) -> bool:
    """Whether an SGLang `Req` is warm traffic, which is no use, no hit and no miss."""
    return str(request.rid).startswith(WARM_RID)


def send_arrival(state: dict, time_stats) -> dict:
    """Add the arrival to what is pickled: stamped where the request enters, kept from then on.

    Never from SGLang's `created_time`, which a client may set in the request's body.
    """
    if not getattr(time_stats, ARRIVAL_FIELD):
        setattr(time_stats, ARRIVAL_FIELD, time.time())
    state[ARRIVAL_FIELD] = getattr(time_stats, ARRIVAL_FIELD)
    return state


def receive_arrival(scheduler, recv_req, *args, **kwargs) -> None:
    """Advance the tree's clock to the request that comes in."""
    core = getattr(scheduler.tree_cache, "tree_core", None)
    if hasattr(core, "observe_arrival"):
        arrival_s = getattr(recv_req.time_stats, ARRIVAL_FIELD, 0.0)
        if arrival_s:
            core.observe_arrival(arrival_s)


def tokens_by_tier(req) -> dict[str, int]:
    """Cached tokens of a request by the tier that had them; they add up to `req.cached_tokens`.

    SGLang splits what the first chunk of a prompt found; what a later chunk finds on the device, it adds to the sum alone.
    """
    host, storage = req.cached_tokens_host, req.cached_tokens_storage
    return {"device": req.cached_tokens - host - storage, "host": host, "storage": storage}


def complete_details(get_cached_tokens_details, streamer, req) -> dict | None:
    """SGLang's `cached_tokens_details` of a response: 0 where it says null, and a sum that is `cached_tokens`."""
    details = get_cached_tokens_details(streamer, req)
    if not hasattr(getattr(streamer.tree_cache, "tree_core", None), "tally"):
        return details
    found = tokens_by_tier(req)
    if details is None:
        details = {"device": 0, "host": 0}
        if streamer.enable_hicache_storage():
            details |= {"storage": 0, "storage_backend": streamer._get_storage_backend_type()}
    return {**details, "device": found["device"]}


def note_end(core, req) -> None:
    """Count a request once, when it is over; SGLang inserts a finished one twice. Its health checks are no requests."""
    if not req.finished() or getattr(req, "radiximp_counted", False):
        return
    req.radiximp_counted = True
    if str(req.rid).startswith(HEALTH_CHECK_RID_PREFIX):
        return
    caller = WARM if is_warm(req) else USER
    num_prompt_tokens = len(req.origin_input_ids)
    core.tally.count_request(caller, num_prompt_tokens, tokens_by_tier(req))
    with core.tally.timing("what_if"):
        token_ids = req.full_untruncated_fill_ids
        core.what_if.note_request(
            token_ids, num_prompt_tokens, req.extra_key, req.cache_salt, is_user=caller == USER
        )


def add_reply(output, scheduler, recv_req, *args, **kwargs) -> None:
    """Put the tree's statistics, or its answer to a command, into the internal state that the scheduler reports."""
    core = getattr(scheduler.tree_cache, "tree_core", None)
    if hasattr(core, "stats"):
        reply = commands.answer(core, recv_req.rid, scheduler.is_fully_idle)
        output.internal_state["radiximp"] = {"dp_rank": commands.own_dp_rank(), **reply}
