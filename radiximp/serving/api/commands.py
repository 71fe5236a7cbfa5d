"""Questions and orders from the HTTP process to the schedulers: one channel, answered on every rank at the same step.

They ride on SGLang's own `GetInternalStateReq`, which reaches all ranks of all data-parallel groups in the order of the
requests, in a field that it does not use (`rid`); the reply comes back in the internal state of each group.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson
from sglang.srt.managers.io_struct import GetInternalStateReq
from sglang.srt.runtime_context import get_parallel

from radiximp.serving.fetch import tiers
from radiximp.serving.metrics import reporting
from radiximp.serving.tree.namespaces import joined

if TYPE_CHECKING:
    from sglang.srt.mem_cache.radix_cache import RadixKey

    from radiximp.serving.tree.core import ImportanceTreeCore

_PREFIX = "radiximp:"


class NotActive(RuntimeError):
    """A scheduler answered without us; the message names its data-parallel rank."""


async def send(tokenizer_manager, name: str, **arguments: Any) -> list[dict]:
    """Ask every data-parallel rank; their replies in order of rank. Raises NotActive."""
    tokenizer_manager.auto_create_handle_loop()
    request = GetInternalStateReq(rid=_PREFIX + json.dumps({"name": name, **arguments}))
    # A caller that gives up must not leave its reply to the next one, so the exchange goes on without it.
    replies = await asyncio.shield(tokenizer_manager.get_internal_state_communicator(request))
    states = [reply.internal_state for reply in replies]
    missing = [rank for rank, state in enumerate(states) if "radiximp" not in state]
    if missing:
        raise NotActive(f"radiximp is not active in the scheduler of data-parallel ranks {missing}")
    return sorted((state["radiximp"] for state in states), key=lambda reply: reply["dp_rank"])


def answer(core: ImportanceTreeCore, rid: str | None, is_idle: Callable[[], bool]) -> dict:
    """The reply of this rank's tree to what `send` sent; the statistics where it was somebody else.

    is_idle: whether nothing runs, waits or is copied, the same on every rank at this step.
    """
    if not (rid or "").startswith(_PREFIX):
        return _stats(core)
    command = json.loads(rid[len(_PREFIX) :])
    if command["name"] == "load_back":
        return _load_back(core, command["now_s"], is_idle())
    return _COMMANDS[command.pop("name")](core, **command)


def key_of(core: ImportanceTreeCore, prompt: dict) -> RadixKey:
    """A prompt as the tree knows it: {"input_ids", "extra_key", "cache_salt", "lora_id"}."""
    extra_key = joined(prompt["extra_key"], prompt["lora_id"])
    return core.key_in(extra_key, prompt["cache_salt"], prompt["input_ids"])


def own_dp_rank() -> int:
    """This scheduler's data-parallel rank; 0 where there is one only."""
    return get_parallel().dp_rank or 0


def _answers() -> bool:
    """Whether this rank's reply is the one of its group that is sent."""
    parallel = get_parallel()
    return not (parallel.attn_tp_rank or parallel.attn_cp_rank or parallel.pp_rank)


def _stats(core) -> dict:
    reply = core.stats()
    # Here only: what is costly to export takes milliseconds, and other commands come many times a second.
    reporting.bring_up_to_now(core)
    return reply


def _pin(core, prompts: list[dict], pin_id: str, ttl_s: float | None, hard: bool, now_s: float) -> dict:
    # On an idle server the clock stands where the last request came; a pin lasts from now.
    core.observe_arrival(now_s)
    try:
        return {"pins": core.pin_book.add(pin_id, [key_of(core, prompt) for prompt in prompts], ttl_s, hard)}
    except ValueError as error:
        return {"error": str(error)}


def _pin_node(
    core, node_id: int, dp_rank: int, pin_id: str, ttl_s: float | None, hard: bool, now_s: float
) -> dict:
    """Pin the prompt that ends with a node of one rank's tree; the other ranks have other nodes."""
    if dp_rank != own_dp_rank():
        return {}
    core.observe_arrival(now_s)
    try:
        return {"pins": core.pin_book.add(pin_id, [core.key_to(node_id)], ttl_s, hard)}
    except KeyError:
        return {"pins": []}
    except ValueError as error:
        return {"error": str(error)}


def _unpin(core, pin_id: str) -> dict:
    return {"removed": core.pin_book.remove(pin_id)}


def _pins(core, pin_id: str | None = None) -> dict:
    return {"pins": core.pin_book.describe(pin_id)}


def _tree(core) -> dict:
    """The tree as columns, serialised: it is large, and what lies between only passes it on. seconds: all that it took."""
    started = time.perf_counter()
    core.settle()
    if not _answers():
        return {}  # the others of the group need only have settled as the one that answers
    tree = orjson.dumps(core.snapshot())
    return {"tree": tree, "seconds": time.perf_counter() - started}


def _node(core, node_id: int, dp_rank: int, preview_tokens: int = 0) -> dict:
    if dp_rank != own_dp_rank():
        core.settle()
        return {}
    return {"node": core.explain(node_id, preview_tokens)}


def _hotspots(core, limit: int, preview_tokens: int = 0) -> dict:
    return {"hotspots": core.hotspots(limit, preview_tokens)}


def _hotspot_prompts(core, limit: int, max_tokens: int) -> dict:
    return {"prompts": core.hotspot_prompts(limit, max_tokens)}


def _load_back(core, now_s: float, is_idle: bool) -> dict:
    # On an idle server no request moves the clock, and what is expected soon depends on it.
    if is_idle:
        core.observe_arrival(now_s)
    return core.load_back.step(is_idle)


def _tiers(core, prompts: list[dict]) -> dict:
    """Tokens of each prompt on the device, only on the host, and with a copy on the host."""
    return {"tiers": [tiers.tokens_by_tier(core, key_of(core, prompt)) for prompt in prompts]}


def _to_host(core, prompts: list[dict]) -> dict:
    """Back each prompt up to the host and let its device copy go first."""
    try:
        return {"marked": [tiers.move_to_host(core, key_of(core, prompt)) for prompt in prompts]}
    except tiers.NoHostTier as error:
        return {"error": str(error)}


def _calibration(core) -> dict:
    """What transfers and prefills cost, predicted and measured; why nothing is known, where nothing is measured."""
    fetch = core.fetch_costs
    return {
        "calibration": {"mode": "stock", "reason": "fetch_decision is stock"}
        if fetch is None
        else fetch.describe()
    }


_COMMANDS = {
    "stats": _stats,
    "pin": _pin,
    "pin_node": _pin_node,
    "unpin": _unpin,
    "pins": _pins,
    "tree": _tree,
    "node": _node,
    "hotspots": _hotspots,
    "hotspot_prompts": _hotspot_prompts,
    "tiers": _tiers,
    "to_host": _to_host,
    "calibration": _calibration,
}
