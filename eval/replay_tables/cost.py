"""What the replay tree costs per request and per eviction, and how many requests a second that is.

Absolute times belong to the machine; the ratio between policies of one run is what carries over. libCacheSim's Python
loop, where it is installed, goes over the same Mooncake pages: one call a page, where the tree takes a prompt at once.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import orjson

from eval.replay_tables.runner import progress, version_of
from eval.replay_tables.workloads import open_workload, survey_of
from radiximp.config import PolicyConfig
from radiximp.replay.files import write_json
from radiximp.replay.run import new_tree, replay_one
from radiximp.replay.trace import Request, TraceError

POLICIES = ("lru", "importance")
NODES = (1_000, 10_000, 50_000, 200_000)
_PAGES = 4
_BATCHES, _BATCH = 15, 100
_CAPACITY = 0.045
_GAP_S = 0.5


def _request(number: int, content: int) -> Request:
    pages = (np.int64(content + 1) << 20) + np.arange(_PAGES, dtype=np.int64)
    return Request(number * _GAP_S, pages, _PAGES * 16, 32)


def _serve(tree: Any, request: Request) -> None:
    path = tree.match(request.namespace, request.page_ids)
    known = sum(map(len, path))
    tree.extend(path, request.namespace, request.page_ids[known:])
    tree.record(path, request.arrival_s)
    tree.record_end(path, request.finish, request.output_tokens, request.arrival_s)


def tree_row(policy: str, num_nodes: int) -> dict[str, Any]:
    """Medians over batches in a full tree: half of the requests return, half are new; every batch evicts what it added."""
    rng, tree = random.Random(0), new_tree(policy, PolicyConfig(), 16)
    tree.policy.note_capacity(num_nodes * _PAGES * 16)
    for number in range(num_nodes):
        _serve(tree, _request(number, number))
    request_us, eviction_us, number = [], [], num_nodes
    tree.evict(_PAGES, number * _GAP_S)
    for _ in range(_BATCHES):
        batch = []
        for _ in range(_BATCH):
            content = rng.randrange(number - num_nodes, number) if rng.random() < 0.5 else number
            batch.append(_request(number, content))
            number += 1
        started = time.perf_counter()
        for request in batch:
            _serve(tree, request)
        request_us.append((time.perf_counter() - started) * 1e6 / _BATCH)
        victims = max(1, (tree.device_pages - num_nodes * _PAGES) // _PAGES)
        started = time.perf_counter()
        for _ in range(victims):
            tree.evict(_PAGES, number * _GAP_S)
        eviction_us.append((time.perf_counter() - started) * 1e6 / victims)
    return {"kind": "tree", "policy": policy, "nodes": num_nodes,
            "request_us": round(median(request_us), 1), "eviction_us": round(median(eviction_us), 1)}  # fmt: skip


def replay_row(policy: str, is_smoke: bool) -> dict[str, Any]:
    """Requests and pages a second of a whole replay of Mooncake at 4.5 %."""
    surveyed, trace = survey_of("mooncake", 0, is_smoke), open_workload("mooncake", 0, is_smoke)
    capacity = int(_CAPACITY * surveyed.num_distinct_pages)
    num_pages = sum(len(request.page_ids) for request in trace.requests())
    started = time.perf_counter()
    if policy == "libCacheSim LRU":
        _libcachesim(trace, capacity)
    else:
        replay_one(trace, policy, PolicyConfig(), capacity, num_requests=surveyed.num_requests)
    seconds = time.perf_counter() - started
    return {"kind": "replay", "policy": policy, "nodes": 0, "requests_per_s": round(surveyed.num_requests / seconds),
            "pages_per_s": round(num_pages / seconds)}  # fmt: skip


def _libcachesim(trace: Any, capacity: int) -> None:
    import libcachesim

    cache = libcachesim.LRU(cache_size=capacity)
    for request in trace.requests():
        for page_id in request.page_ids.tolist():
            cache.get(libcachesim.Request(obj_id=page_id, obj_size=1))


def _has_libcachesim() -> bool:
    try:
        import libcachesim  # noqa: F401
    except ImportError:
        return False
    return True


def run(folder: Path, is_smoke: bool, until_s: float) -> dict[str, Any]:
    """Measure what is missing, trees by size; writes cost.json."""
    path = folder / "cost.json"
    before = orjson.loads(path.read_bytes())["rows"] if path.is_file() else []
    version = version_of()
    rows = {(r["kind"], r["policy"], r["nodes"]): r for r in before if r["version"] == version}
    sizes = NODES[:1] if is_smoke else NODES
    wanted = [("tree", policy, nodes) for nodes in sizes for policy in POLICIES]
    names = [*POLICIES, "libCacheSim LRU"] if _has_libcachesim() else list(POLICIES)
    wanted += [("replay", policy, 0) for policy in names]
    missing = [key for key in wanted if key not in rows]
    with progress("cost: cells", len(missing)) as advance:
        for key in missing:
            if time.monotonic() > until_s:
                break
            kind, policy, nodes = key
            try:
                row = tree_row(policy, nodes) if kind == "tree" else replay_row(policy, is_smoke)
            except TraceError:  # the trees need no trace
                continue
            rows[key] = {**row, "version": version}
            advance()
    document = {"part": "cost", "cells": len(wanted), "rows": list(rows.values())}
    write_json(path, document)
    return document


def markdown(document: dict[str, Any]) -> str:
    """Both tables, with the ratio to lru."""
    rows = document["rows"]
    trees = {(row["nodes"], row["policy"]): row for row in rows if row["kind"] == "tree"}
    lines = ["# What the replay costs", "",
             f"`python -m eval.replay_tables --part cost`: {len(rows)} of {document['cells']} cells. Microseconds on one shared "
             f"core, medians of {_BATCHES} batches; a request has {_PAGES} pages, an eviction frees one leaf.", "",
             "| nodes | request: lru | importance | ratio | eviction: lru | importance | ratio |", "|---|---|---|---|---|---|---|"]  # fmt: skip
    for nodes in dict.fromkeys(nodes for nodes, _ in trees):
        cells = []
        for key in ("request_us", "eviction_us"):
            lru, ours = (trees.get((nodes, name), {}).get(key) for name in POLICIES)
            ratio = f"{ours / lru:.1f}" if lru and ours else "-"
            cells += ["-" if lru is None else f"{lru:.0f}", "-" if ours is None else f"{ours:.0f}", ratio]
        lines.append(f"| {nodes:,} | {' | '.join(cells)} |")
    lines += [
        "",
        "Mooncake at 4.5 %, unpinned, one process:",
        "",
        "| | requests/s | pages/s |",
        "|---|---|---|",
    ]
    lines += [
        f"| {row['policy']} | {row['requests_per_s']:,} | {row['pages_per_s']:,} |"
        for row in rows
        if row["kind"] == "replay"
    ]
    return "\n".join(lines) + "\n"
