"""Talks to a server's `/radiximp/` calls: `Client` waits for the answer, `AsyncClient` gives awaitables of the same.

    with Client("http://127.0.0.1:30000") as client:
        job = client.prewarm([{"text": "You are a travel agent."}])
        print(client.wait_for(job["id"]))

Every call returns the server's JSON object (`metrics` a text) and raises `ApiError` for an answer of 400 or above, httpx.HTTPError where
there is none. Needs httpx (`pip install 'radiximp[client]'`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import httpx

_LOOK_EVERY_S = 0.1
_ENDED = ("done", "cancelled")

Prompt = dict[str, Any]  # {"messages": [...], "tools": [...]}, {"text": ...} or {"input_ids": [...]}


class ApiError(RuntimeError):
    """The server refused a call: `status` and its own words."""

    def __init__(self, status: int, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.retry_after_s = retry_after_s


class Client:
    """Calls of one server; closes its connections at the end of a `with` block."""

    def __init__(self, url: str, api_key: str | None = None, timeout_s: float = 60.0) -> None:
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._http = self._open(base_url=url, headers=headers, timeout=timeout_s)

    def _open(self, **settings: Any) -> Any:
        return httpx.Client(**settings)

    def _send(self, method: str, path: str, **content: Any) -> Any:
        return _checked(self._http.request(method, path, **content))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self._http.close()

    def stats(self) -> Any:
        """The policy's statistics, per data-parallel rank."""
        return self._send("GET", "/radiximp/stats")

    def report(self) -> Any:
        """Versions, the server's arguments without secrets, and the statistics."""
        return self._send("GET", "/radiximp/report")

    def tree(self) -> Any:
        """The tree as it was a moment ago, per data-parallel rank: columns with a row per run of nodes."""
        return self._send("GET", "/radiximp/tree")

    def node(self, node_id: int, dp_rank: int = 0, preview: bool = False) -> Any:
        """A node of one rank's tree and its place in the order of victims; preview: with its first words, which needs the admin key."""
        return self._send("GET", f"/radiximp/tree/{node_id}", params={"dp_rank": dp_rank, "preview": preview})

    def metrics(self) -> Any:
        """All of the server's metrics, the text that Prometheus reads."""
        return self._send("GET", "/metrics/")

    def hotspots(self, limit: int = 10, preview: bool = False) -> Any:
        """The prefixes that many requests and sessions share, per data-parallel rank; preview: with their first words,
        which needs the admin key."""
        return self._send("GET", "/radiximp/hotspots", params={"limit": limit, "preview": preview})

    def export_hotspots(self, limit: int = 64) -> Any:
        """The same with their prompts, as the server's `hotspots_file` holds them; needs the server's admin key."""
        return self._send("GET", "/radiximp/hotspots/export", params={"limit": limit})

    def calibration(self) -> Any:
        """What fetching and computing cost on the server, predicted and measured, per data-parallel rank."""
        return self._send("GET", "/radiximp/calibration")

    def prewarm(
        self, prompts: Sequence[Prompt], *, retain_s: float | None = None, cache_salt: str | None = None,
        extra_key: str | None = None, lora_path: str | None = None, tier: str | None = None,
    ) -> Any:  # fmt: skip
        """Have prompts prefilled when the server is idle: {"id", "status_url"} at once. tier: "device" or "host"."""
        body = {"retain_s": retain_s, "tier": tier}
        body |= {"cache_salt": cache_salt, "extra_key": extra_key, "lora_path": lora_path}
        return self._send("POST", "/radiximp/prewarm", json={"prompts": list(prompts), **_given(body)})

    def prewarms(self, limit: int = 20) -> Any:
        """The newest jobs: state, and how many of their prompts have ended."""
        return self._send("GET", "/radiximp/prewarm", params={"limit": limit})

    def prewarm_state(self, job_id: str) -> Any:
        """How far a job is, and what became of its prompts."""
        return self._send("GET", f"/radiximp/prewarm/{job_id}")

    def cancel_prewarm(self, job_id: str) -> Any:
        """Stop a job after the prompt that is being prefilled."""
        return self._send("DELETE", f"/radiximp/prewarm/{job_id}")

    def wait_for(self, job_id: str, on_progress=lambda job: None) -> Any:
        """Return a job's state once it has ended; on_progress is called with each state on the way."""
        while (job := self.prewarm_state(job_id))["state"] not in _ENDED:
            on_progress(job)
            time.sleep(_LOOK_EVERY_S)
        on_progress(job)
        return job

    def pin(
        self, prompts: Sequence[Prompt] | None = None, *, prewarm_id: str | None = None, node_id: int | None = None,
        dp_rank: int | None = None, ttl_s: float | None = None, hard: bool = False,
        cache_salt: str | None = None, extra_key: str | None = None, lora_path: str | None = None,
    ) -> Any:  # fmt: skip
        """Keep the prompts, those of a pre-warm job that is done, or the one that ends with a node of the tree (of `dp_rank`):
        {"pin_id", "tokens_requested", "tokens_pinned", ...}."""
        body = {"prompts": None if prompts is None else list(prompts), "prewarm_id": prewarm_id}
        body |= {"node_id": node_id, "dp_rank": dp_rank}
        body |= {"cache_salt": cache_salt, "extra_key": extra_key, "lora_path": lora_path}
        return self._send("POST", "/radiximp/pins", json=_given({**body, "ttl_s": ttl_s, "hard": hard}))

    def pins(self) -> Any:
        """All pins, per data-parallel rank."""
        return self._send("GET", "/radiximp/pins")

    def unpin(self, pin_id: str) -> Any:
        """Take a pin off."""
        return self._send("DELETE", f"/radiximp/pins/{pin_id}")


class AsyncClient(Client):
    """As `Client`; every call returns an awaitable, and the block is `async with`."""

    def _open(self, **settings: Any) -> Any:
        return httpx.AsyncClient(**settings)

    async def _send(self, method: str, path: str, **content: Any) -> Any:
        return _checked(await self._http.request(method, path, **content))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.aclose()

    async def wait_for(self, job_id: str, on_progress=lambda job: None) -> Any:
        """As `Client.wait_for`."""
        while (job := await self.prewarm_state(job_id))["state"] not in _ENDED:
            on_progress(job)
            await asyncio.sleep(_LOOK_EVERY_S)
        on_progress(job)
        return job


def _given(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


def _checked(response: httpx.Response) -> Any:
    if response.status_code < 400:
        is_json = "json" in response.headers.get("Content-Type", "")
        return response.json() if is_json else response.text
    try:
        said = response.json()
        message = str(said.get("detail") or said.get("message") or said)
    except ValueError:
        message = response.text[:200] or response.reason_phrase
    retry_after = response.headers.get("Retry-After")
    raise ApiError(response.status_code, message, None if retry_after is None else float(retry_after))
