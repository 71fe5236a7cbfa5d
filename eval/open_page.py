"""What an open page costs the server, how long a snapshot of a large tree takes, and how soon the page can be used.

    python -m eval.open_page [--rounds 5] [--requests 40] [--nodes 50000] [--json eval/results/open_page/cpu.json]

Rounds take turns on one server, in an order that rotates: nobody looks ("closed", twice, which gives the noise floor), the page is open in a
browser on this machine ("open", which pays for drawing, too), and its calls are made at its pace without a browser ("asked", what the server
pays). The snapshot is of a tree of so many nodes in this process; the page is then loaded with what that tree answers.
Exit code 1 if a target is missed: at most 1 % of throughput when asked (or within the noise), 200 ms a snapshot, 2 s until the page can be used.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import orjson
import torch

from eval.unpressured import FLAGS as UNPRESSURED
from eval.unpressured import prompts, requests_per_s
from radiximp.replay.files import write_json
from tests.server.browser import LAPTOP, READY, chromium, opened
from tests.server.canned import answers_of, canned
from tests.server.server import Server, launch

FLAGS = [*UNPRESSURED, "--radix-eviction-policy", "importance"]
MAX_COST, MAX_SNAPSHOT_S, MAX_INTERACTIVE_S = 0.01, 0.2, 2.0
STATES = ("closed", "open", "asked", "closed again")
# The page's calls, each so many seconds after the last.
CALLS = {"stats": 3.0, "tree": 2.0, "hotspots?limit=20&preview=false": 10.0, "pins": 10.0, "prewarm": 3.0}


def large_core(num_nodes: int):
    """A tree core with so many nodes in two levels."""
    from tests.sglang.builders import build_served_cache, fresh_prompts, insert

    torch.set_num_threads(1)  # tiny tensors
    cache, fresh = build_served_cache(6 * num_nodes), fresh_prompts()
    heads = [fresh(8) for _ in range(num_nodes // 50)]
    for number in range(num_nodes - len(heads)):
        insert(cache, heads[number % len(heads)] + fresh(4))
    return cache.tree_core


def snapshot_of(core) -> dict:
    """CPU seconds of the calling thread for a snapshot with its serialisation, the least and the median of seven."""
    seconds, body = [], b""
    for _ in range(7):
        started = time.thread_time()
        body = orjson.dumps(core.snapshot())
        seconds.append(time.thread_time() - started)
    times = {"least_s": min(seconds), "median_s": statistics.median(seconds)}
    return {"nodes": core.num_nodes, **times, "bytes": len(body)}


def interactive_s(browser, url: str) -> float:
    """From asking for the page until a key press has selected a node."""
    started = time.monotonic()
    with opened(browser, url, **LAPTOP) as watched:
        watched.page.wait_for_selector(READY)
        watched.page.focus("#tree")
        watched.page.keyboard.press("Home")
        watched.page.wait_for_selector("#node dl")
        return time.monotonic() - started


@contextmanager
def page_open(browser, server: Server) -> Iterator[None]:
    """The page, open and in front."""
    with opened(browser, server.url, **LAPTOP) as watched:
        watched.page.wait_for_selector(READY)
        yield


@contextmanager
def asked(server: Server) -> Iterator[None]:
    """Its calls, made at its pace."""
    is_over = threading.Event()

    def ask() -> None:
        due_s = dict.fromkeys(CALLS, 0.0)
        with httpx.Client(base_url=f"{server.url}/radiximp/", timeout=60, trust_env=False) as client:
            while not is_over.wait(0.1):
                for path, every_s in CALLS.items():
                    if time.monotonic() >= due_s[path]:
                        client.get(path).raise_for_status()
                        due_s[path] = time.monotonic() + every_s

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def throughput(browser, rounds: int, num_requests: int) -> dict[str, list[float]]:
    """Requests per second by state and round."""
    rates: dict[str, list[float]] = {state: [] for state in STATES}
    with launch(FLAGS) as server:
        requests_per_s(server, prompts(8, seed=10_000))
        for turn in range(rounds):
            batch = prompts(num_requests, seed=turn)
            for state in STATES[turn % 4 :] + STATES[: turn % 4]:
                if state == "open":
                    with page_open(browser, server):
                        rates[state].append(requests_per_s(server, batch))
                elif state == "asked":
                    with asked(server):
                        rates[state].append(requests_per_s(server, batch))
                else:
                    rates[state].append(requests_per_s(server, batch))
    return rates


def ratios(rates: dict[str, list[float]], state: str) -> dict[str, float]:
    """A state's throughput over that of nobody looking, round by round."""
    found = [b / a for a, b in zip(rates["closed"], rates[state], strict=True)]
    return {"median": statistics.median(found), "min": min(found), "max": max(found)}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--nodes", type=int, default=50_000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)

    result: dict = {"rounds": args.rounds, "requests_per_round": args.requests, "processors": os.cpu_count()}
    core = large_core(args.nodes)
    result["snapshot"] = snapshot_of(core)
    with chromium() as browser:
        with canned(answers_of(core)) as url:
            result["interactive_s"] = [interactive_s(browser, url) for _ in range(5)]
        result["requests_per_s"] = rates = throughput(browser, args.rounds, args.requests)
    result["over_closed"] = {state: ratios(rates, state) for state in STATES[1:]}
    floor = result["over_closed"]["closed again"]["min"]
    result["is_met"] = {
        "throughput": result["over_closed"]["asked"]["median"] >= min(1 - MAX_COST, floor),
        "snapshot": result["snapshot"]["median_s"] <= MAX_SNAPSHOT_S,
        "interactive": statistics.median(result["interactive_s"]) <= MAX_INTERACTIVE_S,
    }
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.json, result)
    print(f"snapshot of {result['snapshot']['nodes']:,} nodes: {1e3 * result['snapshot']['median_s']:.0f} ms")
    print(f"usable after {', '.join(f'{wait:.2f}' for wait in result['interactive_s'])} s")
    for state, found in result["over_closed"].items():
        print("{:<13} median {median:.3f} ({min:.3f} .. {max:.3f})".format(state, **found))
    print(f"met: {result['is_met']}")
    return 0 if all(result["is_met"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
