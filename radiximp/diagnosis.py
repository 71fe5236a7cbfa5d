"""What a server's report says of the policy: on or not, and what keeps it from doing its work. Pure: a report in, findings out.

A report is what `GET /radiximp/report` answers. `radiximp doctor` prints the findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

POLICY = "importance"
# What a finding of each level means for the exit code of `radiximp doctor`.
OK, NOTE, WARNING, ERROR = "ok", "note", "warning", "error"
EXIT_CODES = {OK: 0, NOTE: 0, WARNING: 1, ERROR: 2}
_FULL = 0.95


@dataclass(frozen=True, slots=True)
class Finding:
    """what: what was found, with the value. advice: what to change, "" where nothing is to be."""

    level: str
    what: str
    advice: str = ""


def diagnose(report: dict[str, Any]) -> list[Finding]:
    """All findings, the ranks' first."""
    ranks, args = report["ranks"], report["server_args"]
    findings = [finding for rank in ranks for finding in _of_rank(rank)]
    configs = {repr(sorted(rank["config"].items())) for rank in ranks}
    if len(configs) > 1:
        findings.append(
            Finding(ERROR, "data-parallel ranks run different configurations", "restart the whole server")
        )
    expected = args.get("dp_size") or 1
    if len(ranks) != expected:
        findings.append(
            Finding(ERROR, f"{len(ranks)} of {expected} data-parallel ranks answered", "see the server's log")
        )
    for check in _FLAG_CHECKS:
        findings.extend(check(args, ranks))
    return findings


def exit_code(findings: list[Finding]) -> int:
    """0: on, nothing in its way; 1: on, but something is; 2: not on somewhere."""
    return max((EXIT_CODES[finding.level] for finding in findings), default=0)


def _of_rank(rank: dict[str, Any]) -> Iterator[Finding]:
    name = f"rank {rank['dp_rank']}"
    yield Finding(
        OK, f"{name}: policy {rank['policy']} on tree core {rank['tree_core']}, radiximp {rank['version']}"
    )
    # Nothing is ranked before something must go.
    if any(rank["evictions"].values()) and not rank["scorer_calls"]:
        yield Finding(
            ERROR, f"{name}: nodes were evicted, but none was ever ranked", "report this: radiximp bundle"
        )
    importance = rank["importance"]
    if importance.get("observed_layers"):
        layers = ", ".join(map(str, importance["observed_layers"]))
        yield Finding(
            OK, f"{name}: {importance['scorer']} taps layers {layers} of {importance.get('backend')}"
        )
    elif importance["scorer"] == "structural":
        yield Finding(NOTE, f"{name}: attention is not observed, as importance_scorer structural asks for")
    else:
        why = importance.get("not_observed_because") or "no attention layer was found"
        yield Finding(
            WARNING,
            f"{name}: attention is not observed ({why}); the policy ranks by recency and reuse alone",
            'another --attention-backend or parallelism, or {"importance_scorer": "structural"} to say that it is meant',
        )
    guard = rank.get("guard")
    if guard and guard["is_tripped"]:
        yield Finding(
            WARNING,
            f"{name}: the guard lets lru rank, since the policy lost {guard['recent_loss_to_lru']:.1%} of prompt tokens to it",
            "nothing at once: it tries again by itself; if it stays, send a bundle",
        )
    budget = rank["pin_budget_tokens"]
    if budget and rank["pinned_tokens"] >= _FULL * budget:
        yield Finding(
            WARNING,
            f"{name}: pins hold {rank['pinned_tokens']:,} of {budget:,} tokens, new ones get what is left or displace others",
            "remove pins (radiximp pins list) or raise pin_fraction",
        )


def _host_tier(args: dict, ranks: list[dict]) -> Iterator[Finding]:
    if not args.get("enable_hierarchical_cache"):
        yield Finding(
            NOTE,
            "no host tier: what leaves the device has to be computed again",
            "--enable-hierarchical-cache",
        )
        return
    policy, ratio = args.get("hicache_write_policy"), args.get("hicache_ratio")
    if policy != "write_back" and not args.get("hicache_size") and ratio and ratio <= 1:
        yield Finding(
            WARNING,
            f"--hicache-ratio {ratio:g}: under {policy} the host repeats most of what the device holds, little more fits",
            "--hicache-ratio 2 or more, or --hicache-write-policy write_back",
        )


def _what_if(args: dict, ranks: list[dict]) -> Iterator[Finding]:
    for rank in ranks:
        rates = {row["scale"]: row["hit_rate"] for row in rank["what_if"]["sizes"]}
        if rates.get(2.0) is not None and rates[2.0] - rates[1.0] >= 0.05:
            yield Finding(
                NOTE,
                f"rank {rank['dp_rank']}: with twice the memory below the device lru would hit {rates[2.0]:.0%} of "
                f"prompt tokens, {rates[1.0]:.0%} with what there is",
                "a larger --hicache-ratio or --hicache-size (--mem-fraction-static without a host tier)",
            )


def _settings(args: dict, ranks: list[dict]) -> Iterator[Finding]:
    config = ranks[0]["config"] if ranks else {}
    if config.get("importance_scorer") == "shuffled":
        yield Finding(
            WARNING, "importance_scorer shuffled deals attention to the wrong nodes: it is the control of an experiment",
            "leave it out",
        )  # fmt: skip
    elif config.get("importance_weight") == 0 and config.get("importance_scorer") != "structural":
        yield Finding(
            NOTE, "attention is observed but importance_weight is 0, so it ranks nothing", 'structural saves the cost'
        )  # fmt: skip
    if config.get("half_life_s") == 0:
        yield Finding(WARNING, "half_life_s 0 ranks by last access alone, as lru does", "leave it out")
    if config.get("ghost_factor") == 0:
        yield Finding(
            WARNING, "ghost_factor 0: what was evicted comes back as if it were new", "leave it out"
        )


def _flags(args: dict, ranks: list[dict]) -> Iterator[Finding]:
    page = args.get("page_size") or 1
    if page > 64:
        yield Finding(
            NOTE,
            f"--page-size {page}: a prefix is found in whole pages only",
            "16 to 64, where the backend allows",
        )
    if args.get("enable_session_radix_cache"):
        yield Finding(
            NOTE, "--enable-session-radix-cache: a session's references rank before the policy's score"
        )
    if not args.get("enable_metrics"):
        yield Finding(NOTE, "no metrics", "--enable-metrics")
    if not args.get("enable_cache_report"):
        yield Finding(NOTE, "OpenAI answers do not say how many tokens were cached", "--enable-cache-report")
    if (args.get("disaggregation_mode") or "null") != "null":
        yield Finding(
            NOTE,
            f"--disaggregation-mode {args['disaggregation_mode']}: the prefix cache works where prompts are prefilled",
        )
    is_open = args.get("host") not in ("127.0.0.1", "localhost", "::1", None)
    if is_open and not (args.get("api_key") or args.get("admin_api_key")):
        yield Finding(
            WARNING, f"the server listens on {args['host']} without a key: anybody may pin, pre-warm and read hotspots",
            "--admin-api-key",
        )  # fmt: skip


_FLAG_CHECKS: tuple[Callable[[dict, list[dict]], Iterator[Finding]], ...] = (
    _host_tier,
    _settings,
    _flags,
    _what_if,
)
