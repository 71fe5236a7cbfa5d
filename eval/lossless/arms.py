"""The servers that answer, and what they do to a prompt before they answer it.

off        no prefix cache at all (--disable-radix-cache): the truth
off again  the same once more: what differs between the two is the machine's own noise
pressure   importance, device and host pools far too small, load-back in idle moments; prompts are also pre-warmed, cancelled
           while they are prefilled or decoded, and asked a second time
recompute  the same pools, and whatever is on the host is computed again instead of fetched
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from eval.lossless.prompts import Prompt
from radiximp import Client
from tests.server.server import Server, launch

NUM_OUTPUT_TOKENS = 4
NUM_CLIENTS = 4
CANCELLED_SHARE, AGAIN_SHARE, NUM_WARMED = 0.15, 0.25, 12
# A client that loses patience while its prompt is prefilled.
_IMPATIENT_S = 0.15
_CANCELLED_TOKENS = 64
_CACHE = ("--radix-eviction-policy", "importance", "--enable-cache-report")


@dataclass(frozen=True)
class Arm:
    """has_cache: else stock SGLang without a prefix cache. config: of the policy."""

    has_cache: bool
    config: dict[str, Any]


ARMS = {
    "off": Arm(False, {}),
    "pressure": Arm(True, {"load_back": True, "hotspot_queries": 20}),
    "recompute": Arm(True, {"fetch_decision": "recompute"}),
    "off again": Arm(False, {}),
}


@contextmanager
def serving(name: str, device_tokens: int) -> Iterator[Server]:
    """The server of an arm; with a cache its tree is checked at every idle moment."""
    arm = ARMS[name]
    flags = [
        "--chunked-prefill-size",
        "512",
        "--max-running-requests",
        str(NUM_CLIENTS),
        "--log-level",
        "warning",
    ]
    if arm.has_cache:
        pools = ["--max-total-tokens", str(device_tokens), "--hicache-ratio", "1.3"]
        flags += [*_CACHE, *pools, "--radix-eviction-policy-config", json.dumps(arm.config)]
        env = {"SGLANG_ENABLE_TREE_CACHE_SANITY_CHECK": "1"}
    else:
        flags, env = [*flags, "--disable-radix-cache"], {}
    with launch(flags, env=env, hierarchical_cache=arm.has_cache) as server:
        yield server
        if "Sanity check FAILED" in server.log():
            raise AssertionError("the tree's sanity check failed")


def answer_block(server: Server, name: str, block: int, prompts: Sequence[Prompt]) -> list[list]:
    """One entry an answer: [prompt's number, condition, tokens from the device, from the host, token ids, log-probabilities]."""
    orders = _orders(block, len(prompts)) if name == "pressure" else {"first": range(len(prompts))}
    if name == "pressure":
        _warm(server, [prompts[i].ids for i in orders["after pre-warm"]])
    tasks = [(i, condition) for condition, numbers in orders.items() for i in numbers]
    if name == "pressure":
        # What is asked again comes after all the rest, when the first answers' KV has been evicted or moved to the host.
        again = [task for task in tasks if task[1] == "again"]
        tasks = sorted((task for task in tasks if task[1] != "again"), key=lambda task: task[0]) + again

    def ask(task: tuple[int, str]) -> list:
        i, condition = task
        if condition == "after cancel":
            _cancel(server, prompts[i].ids, is_decoding=i % 2 == 0)
        response = server.generate(prompts[i].ids, NUM_OUTPUT_TOKENS)
        meta = response["meta_info"]
        details = meta.get("cached_tokens_details") or {"device": meta["cached_tokens"], "host": 0}
        logprobs = [entry[0] for entry in meta["output_token_logprobs"]]
        return [
            i,
            condition,
            details.get("device", 0),
            details.get("host", 0),
            response["output_ids"],
            logprobs,
        ]

    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        return list(pool.map(ask, tasks))


def _orders(block: int, number: int) -> dict[str, list[int]]:
    """Which prompts meet which condition; every prompt is in one of the first three, some also in "again"."""
    rng = random.Random(f"conditions {block}")
    numbers = list(range(number))
    rng.shuffle(numbers)
    warmed = numbers[: min(NUM_WARMED, number // 4)]
    rest = numbers[len(warmed) :]
    num_cancelled = int(CANCELLED_SHARE * number)
    return {
        "first": rest[num_cancelled:],
        "after cancel": rest[:num_cancelled],
        "after pre-warm": warmed,
        "again": sorted(rng.sample(range(number), int(AGAIN_SHARE * number))),
    }


def _warm(server: Server, prompts: list[list[int]]) -> None:
    """Pre-warm all but the last tokens of half of the prompts; the other half's job is cancelled while it runs."""
    half = len(prompts) // 2
    with Client(server.url) as client:
        done = client.prewarm([{"input_ids": ids[:-8]} for ids in prompts[:half]])
        job = client.wait_for(done["id"])
        assert job["state"] == "done", job
        begun = client.prewarm([{"input_ids": ids[:-8]} for ids in prompts[half:]])
        time.sleep(0.3)
        client.cancel_prewarm(begun["id"])
        client.wait_for(begun["id"])


def _cancel(server: Server, ids: list[int], is_decoding: bool) -> None:
    """Send the prompt and hang up: at its first token, or before."""
    sampling = {"temperature": 0, "max_new_tokens": _CANCELLED_TOKENS, "ignore_eos": True}
    body = {"input_ids": ids, "sampling_params": sampling, "stream": True}
    timeout = httpx.Timeout(300 if is_decoding else _IMPATIENT_S, connect=30)
    try:
        with httpx.stream(
            "POST", server.url + "/generate", json=body, timeout=timeout, trust_env=False
        ) as answer:
            for _ in answer.iter_lines():
                break
    except httpx.ReadTimeout:
        pass


def stats_of(server: Server, name: str) -> dict[str, Any]:
    """What the server did, to show that there was pressure."""
    if not ARMS[name].has_cache:
        return {}
    (rank,) = server.get("/radiximp/stats").json()["ranks"]
    kept = ("evictions", "evicted_tokens", "sanity_checks", "ghost_hits", "load_back", "uses")
    return {key: rank.get(key) for key in kept}
