"""From a name or a configuration to the policy it asks for: the one place that names them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from radiximp.config import PolicyConfig
from radiximp.policy.base import Policy
from radiximp.policy.baselines.arc import ARC
from radiximp.policy.baselines.gdsf import GDSF
from radiximp.policy.baselines.ghosted import GhostLFU, GhostSLRU
from radiximp.policy.baselines.s3fifo import S3FIFO
from radiximp.policy.baselines.stock import RANKS, TLRU, StockPolicy
from radiximp.policy.baselines.uniform import RandomPolicy
from radiximp.policy.gittins import GittinsPolicy
from radiximp.policy.lrfu import ImportanceLRFU

# What TLRU leaves to be computed again: a server's latency budget, in tokens of prefill.
_TLRU_THRESHOLD_TOKENS = 2048


def make_policy(config: PolicyConfig) -> Policy:
    """The policy of `--radix-eviction-policy importance` with this configuration."""
    return ImportanceLRFU(config) if config.score == "lrfu" or config.is_lru else GittinsPolicy(config)


class Entry(NamedTuple):
    """How to make a policy, and the tree it runs in: with a ghost table or not, with cut or whole leaves."""

    make: Callable[[PolicyConfig, int], Policy]
    has_ghosts: bool
    trims: bool


POLICIES: dict[str, Entry] = {
    "importance": Entry(lambda config, seed: make_policy(config), has_ghosts=True, trims=True),
    **{
        name: Entry(lambda config, seed, name=name: StockPolicy(name), has_ghosts=False, trims=False)
        for name in RANKS
    },
    "tlru": Entry(lambda config, seed: TLRU(_TLRU_THRESHOLD_TOKENS), has_ghosts=False, trims=False),
    "lfu-ghost": Entry(lambda config, seed: GhostLFU(), has_ghosts=True, trims=True),
    "slru-ghost": Entry(lambda config, seed: GhostSLRU(), has_ghosts=True, trims=True),
    "lrfu": Entry(lambda config, seed: ImportanceLRFU(PolicyConfig()), has_ghosts=True, trims=True),
    "gdsf": Entry(lambda config, seed: GDSF(), has_ghosts=True, trims=True),
    "arc": Entry(lambda config, seed: ARC(), has_ghosts=True, trims=True),
    "s3fifo": Entry(lambda config, seed: S3FIFO(), has_ghosts=True, trims=True),
    "random": Entry(lambda config, seed: RandomPolicy(seed), has_ghosts=False, trims=True),
}


def make_named_policy(name: str, config: PolicyConfig | None = None, seed: int = 0) -> Policy:
    """A fresh policy; the config is read by `importance`, the seed by `random`. ValueError lists the names."""
    entry = POLICIES.get(name)
    if entry is None:
        raise ValueError(f"unknown policy {name!r}; expected one of {', '.join(POLICIES)}")
    return entry.make(PolicyConfig() if config is None else config, seed)
