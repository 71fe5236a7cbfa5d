"""The `/radiximp/` calls in SGLang's own HTTP app, with its levels of authorisation.

All of them tell of other people's prompts or change what is kept: they need the admin key where one is set, the API key
where only that is, and nothing otherwise.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from functools import cache
from typing import Annotated

import orjson
from fastapi import HTTPException, Path, Query, Request
from fastapi.responses import Response
from sglang.srt.entrypoints import http_server
from sglang.srt.utils import build_server_info
from sglang.srt.utils.auth import AuthDecision, AuthLevel, auth_level, decide_request_auth
from sglang.srt.utils.msgspec_utils import msgspec_to_builtins

from radiximp.prewarm import manifest
from radiximp.redaction import redacted
from radiximp.serving.api import background, commands, hotspots_file, page
from radiximp.serving.api.bodies import BoundedRoute, too_many
from radiximp.serving.api.prewarm import MAX_KEPT, NotKept, Prewarmer, QueueFull
from radiximp.serving.api.prompts import (
    MAX_DP_RANK,
    MAX_NODE_ID,
    PinForm,
    PrewarmForm,
    PromptError,
    Prompts,
    as_keys,
    tokenized,
)
from radiximp.serving.api.shared_answer import SharedAnswer
from radiximp.versions import installed_versions

_MAX_HOTSPOTS = 1000
_PREVIEW_TOKENS = 48
# Numbers of answers start anew with the server.
_PROCESS = uuid.uuid4().hex[:8]


def add_routes() -> None:
    """Add our routes to the app; safe to call twice."""
    app = http_server.app
    if any(getattr(route, "path", "") == "/radiximp/stats" for route in app.routes):
        return
    for method, path, endpoint, status in (
        ("GET", "/radiximp/stats", stats, 200),
        ("GET", "/radiximp/report", report, 200),
        ("GET", "/radiximp/tree", tree, 200),
        ("GET", "/radiximp/tree/{node_id}", tree_node, 200),
        ("GET", "/radiximp/hotspots", hotspots, 200),
        ("GET", "/radiximp/hotspots/export", export_hotspots, 200),
        ("GET", "/radiximp/calibration", calibration, 200),
        ("POST", "/radiximp/pins", add_pin, 201),
        ("GET", "/radiximp/pins", list_pins, 200),
        ("GET", "/radiximp/pins/{pin_id}", get_pin, 200),
        ("DELETE", "/radiximp/pins/{pin_id}", remove_pin, 200),
        ("POST", "/radiximp/prewarm", prewarm, 202),
        ("GET", "/radiximp/prewarm", list_prewarms, 200),
        ("GET", "/radiximp/prewarm/{job_id}", get_prewarm, 200),
        ("DELETE", "/radiximp/prewarm/{job_id}", cancel_prewarm, 200),
    ):
        app.router.add_api_route(
            path,
            auth_level(AuthLevel.ADMIN_OPTIONAL)(endpoint),
            methods=[method],
            status_code=status,
            route_class_override=BoundedRoute,
        )

    for path in page.files():
        is_page = path == page.ROOT
        app.router.add_api_route(
            path, page_file, methods=["GET"], response_class=Response, include_in_schema=is_page
        )
    app.router.add_api_route(page.ACCESS, page_access, methods=["GET"], include_in_schema=False)
    page.open_files()
    background.run_with(app, _prewarmer)


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


async def _prompts(request: Request, body: Prompts | PinForm) -> list[dict]:
    try:
        return await tokenized(http_server.get_global_state(), request.app.state.openai_serving_chat, body)
    except PromptError as error:
        raise HTTPException(400, str(error)) from None


async def stats() -> dict:
    """The policy's statistics, per data-parallel rank."""
    return {"ranks": await _send("stats"), "prewarm": _prewarmer().stats()}


async def hotspots(
    request: Request, limit: Annotated[int, Query(ge=1, le=_MAX_HOTSPOTS)] = 10, preview: bool = False
) -> dict:
    """Prefixes that many requests and sessions share, per data-parallel rank: tokens, tier, importance, queries, sessions, age.

    preview: the first words of each, which are other people's: only with the admin key.
    """
    if preview:
        _require_admin(request)
    ranks = await _send("hotspots", limit=limit, preview_tokens=_PREVIEW_TOKENS if preview else 0)
    if preview:
        for row in (row for reply in ranks for row in reply["hotspots"]):
            row["preview"] = _text_of(row.pop("preview_ids"))
    return {"ranks": ranks, "fingerprint": await _fingerprint()}


async def _fingerprint() -> dict:
    return await asyncio.to_thread(hotspots_file.fingerprint_of, _manager())


def _is_admin(request: Request) -> AuthDecision:
    """As SGLang's level ADMIN_FORCE, which would put its check before every other call too: 403 where no admin key is set."""
    args = _manager().server_args
    return decide_request_auth(
        method=request.method,
        path=request.url.path,
        authorization_header=request.headers.get("Authorization"),
        api_key=args.api_key,
        admin_api_key=args.admin_api_key,
        auth_level=AuthLevel.ADMIN_FORCE,
    )


def _may_change(request: Request) -> bool:
    """Whether the page offers to change anything: with the admin key, and where the server asks for no key at all."""
    return _is_admin(request).allowed or page.needed_key(_manager().server_args) == "none"


def _require_admin(request: Request) -> None:
    decision = _is_admin(request)
    if not decision.allowed:
        message = "this shows other people's prompts; it needs --admin-api-key and that key"
        raise HTTPException(decision.error_status_code, message)


async def page_file(request: Request) -> Response:
    """The live page and its files, without a key: they hold nothing of this server."""
    file = page.files()[request.scope["route"].path]
    if request.headers.get("If-None-Match") == file.etag:
        return Response(status_code=304, headers=file.headers)
    return Response(file.content, headers=file.headers)


async def tree(request: Request) -> Response:
    """The tree as it was a moment ago, per data-parallel rank: columns with a row per run of nodes, parents first.

    All who ask share one answer, made at most every two seconds and so seldom that it takes at most 0.5 % of the scheduler's time. may: what
    the page offers to this caller. With the `ETag` of an answer as `If-None-Match` 304 until there is a newer one.
    """
    try:
        answer = await _shared_tree().get()
    except commands.NotActive as error:
        raise HTTPException(500, str(error)) from None
    may = {"change": _may_change(request), "read_text": _is_admin(request).allowed}
    etag = f'"{_PROCESS}-{answer.number}-{may["change"]:d}{may["read_text"]:d}"'
    headers = {"ETag": etag, "Cache-Control": "no-cache"}
    if request.headers.get("If-None-Match") == etag:
        return Response(status_code=304, headers=headers)
    told = {"interval_s": answer.interval_s, "age_s": _shared_tree().clock() - answer.made_s, "may": may}
    content = orjson.dumps({**told, "ranks": answer.content})
    return Response(content, media_type="application/json", headers=headers)


@cache
def _shared_tree() -> SharedAnswer:
    return SharedAnswer(_ask_tree)


async def page_access() -> dict:
    """Whether the page's calls need a key: what any refused call tells, too."""
    return {"key": page.needed_key(_manager().server_args)}


async def _ask_tree() -> tuple[list[dict], float]:
    ranks = await commands.send(_manager(), "tree")
    content = [{**rank, "tree": orjson.Fragment(rank["tree"])} for rank in ranks]
    return content, max(rank["seconds"] for rank in ranks)


async def tree_node(
    request: Request,
    node_id: Annotated[int, Path(ge=0, le=MAX_NODE_ID)],
    dp_rank: Annotated[int, Query(ge=0, le=MAX_DP_RANK)] = 0,
    preview: bool = False,
) -> dict:
    """A node of one rank's tree: what it remembers, its place in the order of victims, and what stands before it; 404 once it is gone.

    preview: the first words of its own part, which are other people's: only with the admin key.
    """
    if preview:
        _require_admin(request)
    ranks = await _send(
        "node", node_id=node_id, dp_rank=dp_rank, preview_tokens=_PREVIEW_TOKENS if preview else 0
    )
    node = next((reply["node"] for reply in ranks if "node" in reply), None)
    if node is None:
        raise HTTPException(
            404, f"no node {node_id} in the tree of data-parallel rank {dp_rank}: it was evicted or cut"
        )
    if preview:
        node["preview"] = _text_of(node.pop("preview_ids"))
    return {"dp_rank": dp_rank, **node}


def _text_of(ids: list[int]) -> str | None:
    """None on a server without a tokenizer."""
    tokenizer = _manager().tokenizer
    return None if tokenizer is None else tokenizer.decode(ids)


async def report() -> dict:
    """What `radiximp doctor` and `radiximp bundle` look at: versions, the server's arguments without secrets, statistics."""
    state = http_server.get_global_state()
    answer = {
        "versions": installed_versions(),
        "server_args": build_server_info(state.tokenizer_manager.server_args, state.scheduler_info),
        "ranks": await _send("stats"),
    }
    return redacted(msgspec_to_builtins(answer))


async def export_hotspots(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=hotspots_file.MAX_ENTRIES)] = hotspots_file.MAX_ENTRIES,
) -> Response:
    """The hotspots with their prompts, as `hotspots_file` holds them; other people's prompts: only with the admin key."""
    _require_admin(request)
    try:
        entries = await hotspots_file.ask(_manager(), limit)
    except commands.NotActive as error:
        raise HTTPException(500, str(error)) from None
    return Response(manifest.dump(entries, await _fingerprint()), media_type="application/json")


async def calibration() -> dict:
    """What fetching and computing cost here, predicted and measured, per data-parallel rank."""
    return {"ranks": await _send("calibration")}


async def add_pin(request: Request, body: PinForm) -> dict:
    """Keep prompts: soft pins are prolonged by use, hard ones end at a fixed time; both within the budget."""
    pin_id = uuid.uuid4().hex
    now_s = time.time()
    wish = {"pin_id": pin_id, "ttl_s": body.ttl_s, "hard": body.hard, "now_s": now_s}
    if body.node_id is not None:
        ranks = await _pin_node(body, wish)
    else:
        ranks = await _send("pin", prompts=await _pinned_prompts(request, body), **wish)
    for reply in ranks:
        if "error" in reply:
            await _send("unpin", pin_id=pin_id)
            raise HTTPException(409, reply["error"])
    expires_at = None if body.ttl_s is None else now_s + body.ttl_s
    return {"pin_id": pin_id, **_totals(ranks), "expires_at": expires_at, "ranks": ranks}


async def _pin_node(body: PinForm, wish: dict) -> list[dict]:
    """The reply of the one rank whose node it is."""
    ranks = await _send("pin_node", node_id=body.node_id, dp_rank=body.dp_rank, **wish)
    ranks = [reply for reply in ranks if "error" in reply or reply.get("pins")]
    if not ranks:
        where = f"the tree of data-parallel rank {body.dp_rank}"
        raise HTTPException(404, f"no node {body.node_id} in {where}: it was evicted or cut")
    return ranks


async def _pinned_prompts(request: Request, body: PinForm) -> list[dict]:
    """As the trees know them: those of the call, or of the pre-warm job that it names."""
    try:
        if body.prewarm_id is None:
            return as_keys(_manager(), await _prompts(request, body))
        job = _prewarmer().get(body.prewarm_id)
        if job is None:
            raise HTTPException(404, f"no pre-warm job {body.prewarm_id!r}")
        return as_keys(_manager(), _prewarmer().prompts_of(job))
    except NotKept as error:
        raise HTTPException(409, str(error)) from None
    except PromptError as error:
        raise HTTPException(400, str(error)) from None


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
    if body.tier == "host" and not _manager().server_args.enable_hierarchical_cache:
        raise HTTPException(
            400, "tier: host needs a server with a host tier; start it with --enable-hierarchical-cache"
        )
    try:
        _prewarmer().check_room()  # before anything is tokenised
        job = _prewarmer().submit(await _prompts(request, body), body.retain_s, body.tier)
    except QueueFull as error:
        return too_many(str(error))
    return {"id": job.job_id, "status_url": f"/radiximp/prewarm/{job.job_id}"}


async def list_prewarms(limit: Annotated[int, Query(ge=1, le=MAX_KEPT)] = 20) -> dict:
    """The newest jobs: state, and how many of their prompts have ended."""
    return {"jobs": [job.summary() for job in _prewarmer().newest(limit)]}


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
