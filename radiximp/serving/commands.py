"""Questions and orders from the HTTP process to the schedulers: one channel, answered on every rank at the same step.

They ride on SGLang's own `GetInternalStateReq`, which reaches all ranks of all data-parallel groups in the order of the
requests, in a field that it does not use (`rid`); the reply comes back in the internal state of each group.
"""

from __future__ import annotations

import json
from array import array
from typing import TYPE_CHECKING, Any

from sglang.srt.managers.io_struct import GetInternalStateReq
from sglang.srt.mem_cache.radix_cache import RadixKey

from radiximp.serving.namespaces import joined

if TYPE_CHECKING:
    from radiximp.serving.tree_core import ImportanceTreeCore

_PREFIX = "radiximp:"


class NotActive(RuntimeError):
    """A scheduler answered without us; the message names its data-parallel rank."""


async def send(tokenizer_manager, name: str, **arguments: Any) -> list[dict]:
    """Ask every data-parallel rank; their replies in order of rank. Raises NotActive."""
    tokenizer_manager.auto_create_handle_loop()
    request = GetInternalStateReq(rid=_PREFIX + json.dumps({"name": name, **arguments}))
    states = [
        reply.internal_state for reply in await tokenizer_manager.get_internal_state_communicator(request)
    ]
    missing = [rank for rank, state in enumerate(states) if "radiximp" not in state]
    if missing:
        raise NotActive(f"radiximp is not active in the scheduler of data-parallel ranks {missing}")
    return sorted((state["radiximp"] for state in states), key=lambda reply: reply["dp_rank"])


def answer(core: ImportanceTreeCore, rid: str | None) -> dict:
    """The reply of this rank's tree to what `send` sent; the statistics where it was somebody else."""
    if not (rid or "").startswith(_PREFIX):
        return core.stats()
    command = json.loads(rid[len(_PREFIX) :])
    return _COMMANDS[command.pop("name")](core, **command)


def key_of(core: ImportanceTreeCore, prompt: dict) -> RadixKey:
    """A prompt as the tree knows it: {"input_ids", "extra_key", "cache_salt"}."""
    key = RadixKey(
        array("q", prompt["input_ids"]),
        joined(prompt["extra_key"], None),
        is_bigram=core.is_eagle,
        cache_salt=prompt["cache_salt"],
    )
    return key.page_aligned(core.page_size)


def _pin(core, prompts: list[dict], pin_id: str, ttl_s: float | None, hard: bool, now_s: float) -> dict:
    # On an idle server the clock stands where the last request came; a pin lasts from now.
    core.observe_arrival(now_s)
    try:
        return {"pins": core.pin_book.add(pin_id, [key_of(core, prompt) for prompt in prompts], ttl_s, hard)}
    except ValueError as error:
        return {"error": str(error)}


def _unpin(core, pin_id: str) -> dict:
    return {"removed": core.pin_book.remove(pin_id)}


def _pins(core, pin_id: str | None = None) -> dict:
    return {"pins": core.pin_book.describe(pin_id)}


def _hotspots(core, limit: int) -> dict:
    return {"hotspots": core.hotspots(limit)}


def _tiers(core, prompts: list[dict]) -> dict:
    """Tokens of each prompt on the device, and only on the host."""
    found = []
    for prompt in prompts:
        nodes = core.describe(key_of(core, prompt))
        device = sum(node["tokens"] for node in nodes if node["is_on_device"])
        found.append({"device": device, "host": sum(node["tokens"] for node in nodes) - device})
    return {"tiers": found}


_COMMANDS = {
    "stats": lambda core: core.stats(),
    "pin": _pin,
    "unpin": _unpin,
    "pins": _pins,
    "hotspots": _hotspots,
    "tiers": _tiers,
}
