"""Which cells each part replays, the most telling first: a run that is cut short leaves the best table it can."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from eval.replay_tables.variants import VARIANTS
from eval.replay_tables.workloads import AGENTS, AGENTS_ALL, TEXT
from eval.workloads import GENERATORS, adversarial
from radiximp.config import PolicyConfig
from radiximp.policy.baselines.stock import RANKS
from radiximp.policy.registry import POLICIES
from radiximp.replay.run import BOUND, replay_one

OURS = "importance"
LRU = "lru"
STOCK = (*RANKS, "tlru")
TRIO = (LRU, OURS, BOUND)
NUM_SEEDS = 3
FACTORS = (4.0, 0.25)

MOONCAKE_CAPACITIES = ("1%", "2%", "4.5%", "10%", "20%", "22%", "30%")
AGENTS_CAPACITIES = ("250k", "500k", "1M", "2M", "4M")
TEXT_CAPACITIES = ("2%", "5%", "10%", "20%", "50%")
ADVERSARIAL_CAPACITIES = ("15%", "30%", "50%", "80%", "120%")
STUDIED = (("mooncake", ("2%", "4.5%", "20%")), (AGENTS, ("500k", "1M", "2M")))
STUDIED_BY_PRIORITY = (
    ("mooncake", ("2%",)), (AGENTS, ("500k",)), ("mooncake", ("20%",)), (AGENTS, ("2M",)),
    ("mooncake", ("4.5%",)), (AGENTS, ("1M",)),
)  # fmt: skip
ABLATED_SETTINGS = (
    ("ghost_factor", 0.0), ("ghost_factor", 1.0), ("ghost_factor", 16.0), ("trim_tokens", 0), ("prior_spans", 0.5),
    ("prior_spans", 8.0), ("law_half_life_s", 1800.0), ("law_half_life_s", 28800.0),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Task:
    """One cell. settings: those of `PolicyConfig` that are not the default. variant: of `variants.py`, or ""."""

    workload: str
    seed: int
    policy: str
    capacity: str
    host: str = "0"
    write_policy: str = "write_through"
    pin_running: bool = False
    settings: tuple[tuple[str, float], ...] = ()
    variant: str = ""
    is_smoke: bool = False


def _crossed(workload, seeds, policies, capacities, **rest) -> Iterator[Task]:
    for seed, capacity, policy in itertools.product(seeds, capacities, policies):
        yield Task(workload, seed, policy, capacity, **rest)


def main(seeds: range) -> list[Task]:
    """SGLang's policies and the bound on the public traces under every seed, the others under the first; text with three."""
    others = tuple(name for name in POLICIES if name not in (*TRIO, *STOCK))
    known = (*TRIO[1:], *STOCK)
    agents_all = AGENTS_CAPACITIES[1:]
    # The recorded arrivals of Mooncake have no seed.
    return [
        *_crossed("mooncake", (0,), (*known, *others), MOONCAKE_CAPACITIES),
        *_crossed(AGENTS, seeds, known, AGENTS_CAPACITIES),
        *itertools.chain(*(_crossed(name, seeds, TRIO, TEXT_CAPACITIES) for name in TEXT)),
        *_crossed(AGENTS_ALL, seeds[:1], known, agents_all),
        *_crossed(AGENTS, (0,), others, AGENTS_CAPACITIES),
        *_crossed(AGENTS_ALL, seeds[1:], known, agents_all),
        *_crossed(AGENTS_ALL, (0,), others, agents_all),
    ]


def adversarial_traces(seeds: range) -> list[Task]:
    """Generated traces that favour recency, or change what was learned."""
    tasks = itertools.chain(*(_crossed(name, seeds, TRIO, ADVERSARIAL_CAPACITIES) for name in GENERATORS))
    return sorted(tasks, key=lambda task: task.seed)


def pinned(seeds: range) -> list[Task]:
    """Two tiers, and requests that hold their memory while they run."""
    policies = (OURS, *STOCK)
    write_back = (("mooncake", "4.5%"), (AGENTS, "1M"), ("scan", "30%"))
    # Sizes in the order of what they tell.
    sizes = [("mooncake", ("4.5%",)), (AGENTS, ("500k",)), *((name, ("30%",)) for name in GENERATORS)]
    more = [("mooncake", ("20%", "2%")), (AGENTS, ("2M", "1M")), *((name, ("80%",)) for name in GENERATORS)]
    return [
        *_two_tiers(sizes, "1x", policies),
        *(
            Task(name, 0, policy, capacity, "1x", "write_back", True)
            for name, capacity in write_back
            for policy in policies
        ),
        *_two_tiers(sizes, "2x", policies),
        *_two_tiers(more, "1x", policies),
        *_two_tiers(more, "2x", policies),
    ]


def _two_tiers(sizes, host: str, policies) -> Iterator[Task]:
    for name, capacities in sizes:
        yield from _crossed(name, (0,), policies, capacities, host=host, pin_running=True)


def ablation(seeds: range) -> list[Task]:
    """The policy without one of its pieces at a time, and with more or less of it."""
    tasks = [task for name, sizes in STUDIED for task in _crossed(name, (0,), TRIO, sizes)]
    for name, sizes in STUDIED_BY_PRIORITY:
        for variant in VARIANTS:
            tasks += _crossed(name, (0,), (OURS,), sizes, variant=variant)
        for setting, value in ABLATED_SETTINGS:
            tasks += _crossed(name, (0,), (OURS,), sizes, settings=((setting, value),))
    return tasks


@functools.cache
def settings_read() -> tuple[str, ...]:
    """The numeric settings that `importance` reads in a replay, found by watching a small one."""
    read: set[str] = set()

    class Watched(PolicyConfig):
        def __getattribute__(self, name: str):
            read.add(name)
            return super().__getattribute__(name)

    config = Watched()
    read.clear()
    trace = adversarial("burst")
    few = dataclasses.replace(trace, requests=lambda: itertools.islice(trace.requests(), 1000))
    replay_one(few, OURS, config, 300, 300, num_requests=1000)
    # What `is_lru` asks of another score is no setting of this one.
    return tuple(
        field.name
        for field in dataclasses.fields(PolicyConfig)
        if field.name in read and "low" in field.metadata and not field.metadata["help"].startswith("lrfu:")
    )


def varied_value(name: str, factor: float) -> float:
    """The setting's default times the factor, within its range, whole where the setting is."""
    field = next(field for field in dataclasses.fields(PolicyConfig) if field.name == name)
    value = min(max(field.default * factor, field.metadata["low"]), field.metadata["high"])
    return round(value) if field.type == "int" else value


def sensitivity(seeds: range) -> list[Task]:
    """Each setting four times as large and as small."""
    sizes = STUDIED_BY_PRIORITY[:4]
    tasks = [task for name, capacities in sizes for task in _crossed(name, (0,), (OURS,), capacities)]
    for name, capacities in sizes:
        for setting, factor in itertools.product(settings_read(), FACTORS):
            changed = ((setting, varied_value(setting, factor)),)
            tasks += _crossed(name, (0,), (OURS,), capacities, settings=changed)
    return tasks


PARTS = {
    "main": main,
    "adversarial": adversarial_traces,
    "pinned": pinned,
    "ablation": ablation,
    "sensitivity": sensitivity,
}


def tasks_of(part: str, num_seeds: int = NUM_SEEDS, is_smoke: bool = False) -> list[Task]:
    """The cells of a part in the order in which they run."""
    tasks = PARTS[part](range(num_seeds))
    if not is_smoke:
        return tasks
    first: dict[tuple, str] = {}
    return [
        dataclasses.replace(task, is_smoke=True)
        for task in tasks
        if task.seed == 0 and first.setdefault((task.workload,), task.capacity) == task.capacity
    ]
