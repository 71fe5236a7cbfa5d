"""Calls of a running server as its tests make them, over an `httpx.Client` that has the admin key."""

from __future__ import annotations

import itertools
import time

import httpx

_next_ids = itertools.count(1000, 7)


def fresh(num_tokens: int) -> list[int]:
    """A prompt that begins as no other does."""
    first = next(_next_ids) % 40_000
    return [1000 + (first * 31 + i * (first % 97 + 3)) % 45_000 for i in range(num_tokens)]


def generate(api, ids: list[int], **body) -> dict:
    """What the server says of a request with one new token: `cached_tokens` and the like."""
    body |= {"input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    return api.post("/generate", json=body).raise_for_status().json()["meta_info"]


def prewarm(api, ids: list[int], **body) -> dict:
    """The result of one prompt, once it is warm."""
    started = api.post("/radiximp/prewarm", json={"prompts": [{"input_ids": ids}], **body})
    assert started.status_code == 202, started.text
    deadline = time.monotonic() + 60
    while (job := api.get(started.json()["status_url"]).json())["state"] in ("waiting", "running"):
        assert time.monotonic() < deadline, job
    (result,) = job["results"]
    return {"id": job["id"], **result}


def pin(api, ids: list[int], **body) -> httpx.Response:
    return api.post("/radiximp/pins", json={"prompts": [{"input_ids": ids}], **body})
