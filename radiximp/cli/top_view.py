"""What `radiximp top` shows of one look, and of what changed since the look before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from radiximp.replay.table import simple_table

_TIERS = ("device", "host", "storage")


def screen(now: dict[str, Any], before: dict[str, Any] | None, url: str, trouble: str = "") -> RenderableType:
    """Everything from top to bottom; `trouble` is why there is nothing newer."""
    ranks = now["stats"]["ranks"]
    earlier = {} if before is None else {rank["dp_rank"]: rank for rank in before["stats"]["ranks"]}
    parts: list[RenderableType] = [
        Text(_title(ranks[0], url)),
        *([Text(trouble, "bold red")] if trouble else []),
    ]
    for rank in ranks:
        parts += [
            Text(f"\nrank {rank['dp_rank']}: {_law(rank)}"),
            *_counts(rank, earlier.get(rank["dp_rank"])),
        ]
        parts += [Text(line) for line in _what_if(rank)]
    parts += _titled("hotspots", _hotspots(now["hotspots"]["ranks"]))
    parts += _titled("pins", _pins(now["pins"]["ranks"]))
    parts += _titled("pre-warm jobs", _jobs(now["prewarm"]["jobs"]))
    return Group(*parts)


def _title(rank: dict, url: str) -> str:
    return f"radiximp {rank['version']} at {url}   policy {rank['policy']}   q or ^C ends"


def _law(rank: dict) -> str:
    guard = rank.get("guard")
    if guard is None:
        return f"{rank['policy']} ranks"
    who = "lru ranks, the learned policy lost to it" if guard["is_tripped"] else f"{rank['policy']} ranks"
    rates = f"found {percent(guard['hit_rate'])}, lru would {percent(guard['shadow_lru_hit_rate'])}"
    return f"{who}; {rank['reuse_classes']} classes of reuse; {rates} (answers included); lru took over {guard['trips']} times"


def _counts(rank: dict, before: dict | None) -> Iterable[RenderableType]:
    table = simple_table(["", "prompt tokens", *_TIERS, "found", "regret", "evicted device", "evicted host"])
    table.add_row("since start", *_row(rank, None))
    # A server that was started anew counts from 0.
    if before is not None and before["prompt_tokens"]["user"] <= rank["prompt_tokens"]["user"]:
        table.add_row("since last look", *_row(rank, before))
    yield table
    yield Text(
        f"nodes {rank['nodes']:,}   ghosts {rank['ghosts']:,}   pinned {rank['pinned_tokens']:,} of {rank['pin_budget_tokens']:,} tokens"
    )


def _row(rank: dict, before: dict | None) -> list[str]:
    def grown(*path: str) -> int:
        value, start = rank, before
        for name in path:
            value, start = value[name], None if start is None else start[name]
        return value if start is None else value - start

    asked = grown("prompt_tokens", "user")
    hits = [grown("hit_tokens", "user", tier) for tier in _TIERS]
    shares = [percent(hit / asked if asked else None) for hit in (*hits, sum(hits), grown("regret_tokens"))]
    return [f"{asked:,}", *shares, *(f"{grown('evicted_tokens', tier):,}" for tier in ("device", "host"))]


def _what_if(rank: dict) -> Iterable[str]:
    sizes = [size for size in rank["what_if"]["sizes"] if size["hit_rate"] is not None]
    if sizes:
        what = "host" if sizes[0]["host_tokens"] else "device"
        rates = "   ".join(f"{size['scale']:g}x {percent(size['hit_rate'])}" for size in sizes)
        yield f"what lru would find by {what} memory: {rates}"


def _hotspots(ranks: list[dict]) -> Table | None:
    table = simple_table(["node", "tokens", "device", "requests", "sessions", "importance", "idle s"])
    rows = [row for rank in ranks for row in rank["hotspots"]]
    for row in rows:
        numbers = [f"{row[name]:,}" for name in ("tokens", "tokens_on_device", "queries", "sessions")]
        table.add_row(str(row["node"]), *numbers, f"{row['importance']:.2f}", f"{row['age_s']:.0f}")
    return table if rows else None


def _pins(ranks: list[dict]) -> Table | None:
    table = simple_table(["pin", "kind", "pinned", "asked", "seconds left"])
    rows = [pin for rank in ranks for pin in rank["pins"]]
    for pin in rows[:8]:
        left = "no end" if pin["expires_in_s"] is None else f"{pin['expires_in_s']:.0f}"
        tokens = (f"{pin[name]:,}" for name in ("tokens_pinned", "tokens_requested"))
        table.add_row(pin["pin_id"][:12], "hard" if pin["hard"] else "soft", *tokens, left)
    return table if rows else None


def _jobs(jobs: list[dict]) -> Table | None:
    table = simple_table(["job", "state", "tier", "prompts", "ended", "failed", "prefilled"])
    for job in jobs:
        numbers = (
            f"{job[name]:,}" for name in ("prompts", "ended_prompts", "failed_prompts", "tokens_prefilled")
        )
        table.add_row(job["id"][:12], job["state"], job["tier"], *numbers)
    return table if jobs else None


def _titled(title: str, table: Table | None) -> list[RenderableType]:
    return [Text(f"\n{title}: none")] if table is None else [Text(f"\n{title}"), table]


def percent(share: float | None) -> str:
    """One decimal; a dash for what is not known."""
    return "-" if share is None else f"{100 * share:.1f}%"
