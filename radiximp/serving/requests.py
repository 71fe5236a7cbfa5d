"""What rides with a request between SGLang's processes: its arrival time in, our statistics out.

The arrival is stamped once, where the request enters, and is broadcast with it: a clock that reads
the same on every rank. (The name must not end in "time": SGLang shifts such fields by each process's
own clock.)
"""

from __future__ import annotations

import time

from sglang.srt.observability import req_time_stats
from sglang.srt.runtime_context import get_parallel

from radiximp.serving import commands

ARRIVAL_FIELD = "radiximp_arrival_s"

# A class attribute, so that SGLang's copying constructor carries the field from class to class.
setattr(req_time_stats.ReqTimeStatsBase, ARRIVAL_FIELD, 0.0)


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


def add_reply(output, scheduler, recv_req, *args, **kwargs) -> None:
    """Put the tree's statistics, or its answer to a command, into the internal state that the scheduler reports."""
    core = getattr(scheduler.tree_cache, "tree_core", None)
    if hasattr(core, "stats"):
        reply = commands.answer(core, recv_req.rid)
        output.internal_state["radiximp"] = {"dp_rank": get_parallel().dp_rank or 0, **reply}
