"""The `/radiximp/` calls in SGLang's own HTTP app, with its levels of authorisation.

All of them tell of other people's prompts or change what is kept: they need the admin key where one is set, the API key
where only that is, and nothing otherwise.
"""

from __future__ import annotations

import time
import uuid
from functools import cache

from fastapi import HTTPException, Request
from fastapi.responses import JSONResponse
from sglang.srt.entrypoints import http_server
from sglang.srt.utils.auth import AuthLevel, auth_level

from radiximp.serving import commands
from radiximp.serving.prewarm import RETRY_AFTER_S, Prewarmer, QueueFull
from radiximp.serving.prompts import PinForm, PrewarmForm, PromptError, Prompts, tokenized

_MAX_HOTSPOTS = 1000


def add_routes() -> None:
    """Add our routes to the app; safe to call twice."""
    app = http_server.app
    if any(getattr(route, "path", "") == "/radiximp/stats" for route in app.routes):
        return
    for method, path, endpoint, status in (
        ("GET", "/radiximp/stats", stats, 200),
        ("GET", "/radiximp/hotspots", hotspots, 200),
        ("POST", "/radiximp/pins", add_pin, 201),
        ("GET", "/radiximp/pins", list_pins, 200),
        ("GET", "/radiximp/pins/{pin_id}", get_pin, 200),
        ("DELETE", "/radiximp/pins/{pin_id}", remove_pin, 200),
        ("POST", "/radiximp/prewarm", prewarm, 202),
        ("GET", "/radiximp/prewarm/{job_id}", get_prewarm, 200),
        ("DELETE", "/radiximp/prewarm/{job_id}", cancel_prewarm, 200),
    ):
        app.add_api_route(
            path, auth_level(AuthLevel.ADMIN_OPTIONAL)(endpoint), methods=[method], status_code=status
        )


def _manager():
    return http_server.get_global_state().tokenizer_manager


@cache
def _prewarmer() -> Prewarmer:
    return Prewarmer(_manager())


async def _send(name: str, **arguments) -> list[dict]:
    try:
        return await commands.send(_manager(), name, **arguments)
    except commands.NotActive as error:
        raise HTTPException(500, str(error)) from None


async def _prompts(request: Request, body: Prompts) -> list[dict]:
    try:
        return await tokenized(http_server.get_global_state(), request.app.state.openai_serving_chat, body)
    except PromptError as error:
        raise HTTPException(400, str(error)) from None


async def stats() -> dict:
    """The policy's statistics, per data-parallel rank."""
    return {"ranks": await _send("stats")}


async def hotspots(limit: int = 10) -> dict:
    """The most used nodes, per data-parallel rank: tokens, tier, importance, queries, sessions, seconds since the last use."""
    if not 1 <= limit <= _MAX_HOTSPOTS:
        raise HTTPException(400, f"limit: expected 1 to {_MAX_HOTSPOTS}, got {limit}")
    return {"ranks": await _send("hotspots", limit=limit)}


async def add_pin(request: Request, body: PinForm) -> dict:
    """Keep prompts: soft pins are prolonged by use, hard ones end at a fixed time; both within the budget."""
    pin_id = uuid.uuid4().hex
    prompts = await _prompts(request, body)
    now_s = time.time()
    order = {"prompts": prompts, "pin_id": pin_id, "ttl_s": body.ttl_s, "hard": body.hard}
    ranks = await _send("pin", **order, now_s=now_s)
    for reply in ranks:
        if "error" in reply:
            await _send("unpin", pin_id=pin_id)
            raise HTTPException(409, reply["error"])
    expires_at = None if body.ttl_s is None else now_s + body.ttl_s
    return {"pin_id": pin_id, **_totals(ranks), "expires_at": expires_at, "ranks": ranks}


def _totals(ranks: list[dict]) -> dict:
    """Over prompts; of the rank that holds least."""
    sums = [
        {name: sum(pin[name] for pin in reply["pins"]) for name in ("tokens_requested", "tokens_pinned")}
        for reply in ranks
    ]
    return min(sums, key=lambda total: total["tokens_pinned"])


async def list_pins() -> dict:
    """All pins, per data-parallel rank."""
    return {"ranks": await _send("pins")}


async def get_pin(pin_id: str) -> dict:
    """One call's pins; 404 once they expired or were removed."""
    ranks = await _send("pins", pin_id=pin_id)
    if not any(reply["pins"] for reply in ranks):
        raise HTTPException(404, f"no pin {pin_id!r}: it was removed, displaced or has expired")
    return {"pin_id": pin_id, **_totals(ranks), "ranks": ranks}


async def remove_pin(pin_id: str) -> dict:
    """Take a call's pins off."""
    ranks = await _send("unpin", pin_id=pin_id)
    if not any(reply["removed"] for reply in ranks):
        raise HTTPException(404, f"no pin {pin_id!r}: it was removed, displaced or has expired")
    return {"pin_id": pin_id, "removed": max(reply["removed"] for reply in ranks)}


async def prewarm(request: Request, body: PrewarmForm):
    """Prefill prompts behind users' requests; answers at once with where to ask how far it is."""
    prompts = await _prompts(request, body)
    try:
        job = _prewarmer().submit(prompts, body.retain_s)
    except QueueFull as error:
        # SGLang's handler of HTTPException would drop the header.
        return JSONResponse(
            {"object": "error", "message": str(error), "code": 429},
            429,
            headers={"Retry-After": str(RETRY_AFTER_S)},
        )
    return {"id": job.job_id, "status_url": f"/radiximp/prewarm/{job.job_id}"}


async def get_prewarm(job_id: str) -> dict:
    """A job's state, and per finished prompt: tokens by tier, tokens prefilled, seconds, error."""
    return _known(_prewarmer().get(job_id), job_id)


async def cancel_prewarm(job_id: str) -> dict:
    """Stop a job after the prompt that is being prefilled."""
    return _known(_prewarmer().cancel(job_id), job_id)


def _known(job, job_id: str) -> dict:
    if job is None:
        raise HTTPException(404, f"no pre-warm job {job_id!r}")
    return job.describe()
