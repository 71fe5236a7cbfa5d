"""All metrics: name, kind, unit, labels, help, where the number is from, and how it is read off a tree core.

One row here is all that a new metric needs. Beside its own labels each has those of SGLang's scheduler metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from radiximp import __version__
from radiximp.policy.gittins import GittinsPolicy
from radiximp.serving.metrics.tally import CALLERS, DENSITY_EDGES, EVICTIONS, GAP_EDGES_S, PHASES, TIERS

# Values by label values, in the order of the labels; of a histogram a `Buckets`. Counters and histograms are totals since the start.
Values = dict[tuple[str, ...], Any]


@dataclass(frozen=True)
class Metric:
    """kind: counter, gauge or histogram. labels: name -> all its values, or () where the server's configuration gives one.

    read: None for what the HTTP process counts. is_costly: takes milliseconds, so it is read at most every ten seconds.
    """

    name: str
    kind: str
    unit: str
    help: str
    source: str
    read: Callable[[Any], Values] | None
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    edges: tuple[float, ...] = ()
    is_costly: bool = False

    @property
    def label_names(self) -> tuple[str, ...]:
        """Its own labels."""
        return tuple(name for name, _ in self.labels)


def _one(read: Callable[[Any], Any]) -> Callable[[Any], Values]:
    return lambda core: {(): read(core)}


def _of_guard(read: Callable[[Any], float]) -> Callable[[Any], Values]:
    """Nothing where no guard is: only the learned policy has one."""
    return lambda core: {(): read(core.policy.guard)} if isinstance(core.policy, GittinsPolicy) else {}


def _requests(core) -> Values:
    return {(caller,): core.tally.requests[caller] for caller in CALLERS}


def _prompt_tokens(core) -> Values:
    return {(caller,): core.tally.prompt_tokens[caller] for caller in CALLERS}


def _hit_tokens(core) -> Values:
    return {(tier, caller): core.tally.hit_tokens[tier, caller] for tier in TIERS for caller in CALLERS}


def _evicted_tokens(core) -> Values:
    return {labels: core.tally.evicted_tokens[labels] for labels in EVICTIONS}


def _policy_seconds(core) -> Values:
    return {(phase,): core.tally.phase_s[phase] for phase in PHASES}


def _info(core) -> Values:
    return {(__version__, core.policy.name, type(core).__name__, core.config.importance_scorer): 1}


def _information_gain(core) -> Values:
    gain = core.information_gain_bits()
    return {} if gain is None else {(): gain}


def _cost_model_error(core) -> Values:
    if core.fetch_costs is None:
        return {}
    costs = core.fetch_costs.costs
    errors = {"prefill": costs.prefill.fit.median_error} | {
        n: tier.fit.median_error for n, tier in costs.tiers.items()
    }
    return {(what,): errors[what] for what in COST_MODELS if errors[what] is not None}


def _what_if(column: str) -> Callable[[Any], Values]:
    return lambda core: {
        (f"{row['scale']:g}",): row[column] for row in core.what_if.rows() if row[column] is not None
    }


COST_MODELS = ("prefill", "host", "storage")
_CALLER = ("caller", CALLERS)
_SCALE = ("scale", ("0.5", "1", "2", "4"))

TABLE: tuple[Metric, ...] = (
    Metric(
        "radiximp_info", "gauge", "", "1 where the policy is on, with what it is.",
        "the tree core in use", _info,
        (("version", ()), ("policy", ()), ("tree_core", ()), ("scorer", ())),
    ),
    Metric(
        "radiximp_requests_total", "counter", "requests", "Requests that ended after their prefill; `warm` are pre-warm requests.",
        "a request's last insert into the tree", _requests, (_CALLER,),
    ),
    Metric(
        "radiximp_prompt_tokens_total", "counter", "tokens", "Prompt tokens of these requests; a pre-warm runs in pieces, each of which begins with those before it.",
        "as above", _prompt_tokens, (_CALLER,),
    ),
    Metric(
        "radiximp_hit_tokens_total", "counter", "tokens",
        "Prompt tokens found in the cache, by the tier that had them; over the tiers they add up to cached_tokens of the responses.",
        "SGLang's count on the request (`cached_tokens_details`)", _hit_tokens, (("tier", TIERS), _CALLER),
    ),
    Metric(
        "radiximp_evicted_tokens_total", "counter", "tokens",
        "Tokens that left a tier. device demoted: the host has a copy; dropped: nothing here has; duplicate: the device still has it.",
        "the tree core, as a node leaves", _evicted_tokens,
        (("tier", ("device", "host")), ("reason", ("demoted", "dropped", "duplicate"))),
    ),
    Metric(
        "radiximp_regret_tokens_total", "counter", "tokens",
        "Tokens that were dropped and then wanted again, as far back as ghosts remember.",
        "ghosts found at an insert", _one(lambda core: core.tally.wanted_tokens),
    ),
    Metric(
        "radiximp_ghost_hits_total", "counter", "returns", "Inserts that found evicted content in the ghost table.",
        "ghost table", _one(lambda core: core.ghosts.num_hits),
    ),
    Metric("radiximp_ghosts", "gauge", "nodes", "Evicted nodes that are remembered.", "ghost table", _one(lambda core: len(core.ghosts))),
    Metric("radiximp_nodes", "gauge", "nodes", "Nodes in the tree, on any tier.", "tree core", _one(lambda core: core.num_nodes)),
    Metric(
        "radiximp_reuse_gap_seconds", "histogram", "seconds",
        "How long tokens lay idle before they were used again; counts tokens, as uses are recorded (before an eviction, or every 256).",
        "use log", _one(lambda core: core.tally.reuse_gap_s), edges=GAP_EDGES_S,
    ),
    Metric(
        "radiximp_importance_density_ratio", "histogram", "ratio",
        "Attention density of nodes, one count per node and observed query; 1 is as attended as the average token.",
        "attention tap", _one(lambda core: core.tally.density), edges=DENSITY_EDGES,
    ),
    Metric("radiximp_observations_total", "counter", "queries", "Prompts whose attention was folded into the tree.", "attention tap", _one(lambda core: core.num_observations)),
    Metric(
        "radiximp_information_gain_bits", "gauge", "bits",
        "What importance tells of reuse beyond the other features, per reuse, corrected for chance; absent before there is evidence.",
        "reuse law", _information_gain, is_costly=True,
    ),
    Metric(
        "radiximp_hotspots", "gauge", "prefixes", "Prefixes that many sessions shared when somebody last looked for them: a call, the page, `load_back`, `hotspots_file`.",
        "hotspots", _one(lambda core: core.num_hotspots),
    ),
    Metric(
        "radiximp_cost_model_error_ratio", "gauge", "ratio",
        "Median error of the newest prefills and transfers, each predicted before it was seen, as a share of what was measured; absent with `fetch_decision` stock and before any.",
        "calibration", _cost_model_error, (("of", COST_MODELS),),
    ),
    Metric("radiximp_pins", "gauge", "prompts", "Prompts pinned through the API.", "pin book", _one(lambda core: core.pin_book.num_pins())),
    Metric("radiximp_pinned_tokens", "gauge", "tokens", "Tokens on the device under a pin.", "tree core", _one(lambda core: core.pinned_tokens)),
    Metric("radiximp_pin_budget_tokens", "gauge", "tokens", "Most tokens that pins may protect.", "`pin_fraction`", _one(lambda core: core.pin_budget_tokens)),
    Metric(
        "radiximp_prewarm_jobs_total", "counter", "jobs", "Pre-warm calls by what became of them; those that wait or run are submitted less done less cancelled.",
        "HTTP process", None, (("state", ("submitted", "done", "cancelled", "refused")),),
    ),
    Metric(
        "radiximp_guard_prompt_tokens_total", "counter", "tokens", "Tokens of used paths, prompts and answers, that the guard compared.",
        "guard", _of_guard(lambda guard: guard.prompt_tokens),
    ),
    Metric("radiximp_guard_hit_tokens_total", "counter", "tokens", "Of these, found in the cache.", "guard", _of_guard(lambda guard: guard.hit_tokens)),
    Metric(
        "radiximp_shadow_lru_hit_tokens_total", "counter", "tokens", "Of these, what lru would have found in the same memory.",
        "guard's shadow of lru", _of_guard(lambda guard: guard.shadow_hit_tokens),
    ),
    Metric("radiximp_guard_tripped", "gauge", "", "1 while lru ranks because the learned policy lost to it.", "guard", _of_guard(lambda guard: int(guard.is_tripped))),
    Metric("radiximp_guard_trips_total", "counter", "times", "How often lru took over.", "guard", _of_guard(lambda guard: guard.num_trips)),
    Metric(
        "radiximp_policy_seconds_total", "counter", "seconds",
        "Time of the scheduler thread spent on ranking: recording uses, choosing victims, folding in attention, the what-if curve.",
        "wall clock", _policy_seconds, (("phase", PHASES),),
    ),
    Metric(
        "radiximp_what_if_hit_ratio", "gauge", "ratio",
        "Share of prompt tokens that lru would hit with `scale` times the host memory (the device's, where there is no host tier).",
        "sampled reuse distances", _what_if("hit_rate"), (_SCALE,), is_costly=True,
    ),
    Metric(
        "radiximp_what_if_error_ratio", "gauge", "ratio", "One standard error of that, by sampling alone.",
        "sampled reuse distances", _what_if("standard_error"), (_SCALE,), is_costly=True,
    ),
)  # fmt: skip
BY_NAME = {metric.name: metric for metric in TABLE}
