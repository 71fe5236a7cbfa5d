"""The one configuration of the plugin: parsed once, frozen, checked with names and ranges.

`--radix-eviction-policy-config '{"half_life_s": 120}'` becomes a `PolicyConfig`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any


class ConfigError(ValueError):
    """A key, type or range the configuration does not accept; the message names all three."""


def _setting(default: float | bool, low: float, high: float, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"low": low, "high": high, "help": text})


def _choice(default: str, choices: tuple[str, ...], text: str) -> Any:
    return dataclasses.field(default=default, metadata={"choices": choices, "help": text})


def _text(default: str, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": text})


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
    """Settings of the `importance` eviction policy. Numbers are inclusive ranges."""

    score: str = _choice("reuse", ("reuse", "lrfu"), "what ranks: the learned law of reuse, or decayed uses")
    law_half_life_s: float = _setting(7200.0, 60, 1e9, "evidence of reuse counts half after this long")
    prior_spans: float = _setting(
        2.0, 0.01, 1000, "evidence, in idle spans, from which a class departs from the coarser one"
    )
    half_life_s: float = _setting(
        300.0, 0, 1e9, "lrfu: a use counts half after this long; 0 ranks by last access as lru does"
    )
    max_uses: float = _setting(
        2, 1, 1e9, "lrfu: decayed uses beyond this many add nothing, so an old hot set can be let go"
    )
    burst_s: float = _setting(0.25, 0, 3600, "uses closer together than this count as less than one use each")
    importance_weight: float = _setting(
        1.0, 0, 8, "exponent of a node's attention density in its score; 0 ignores it"
    )
    importance_half_life_queries: float = _setting(1, 1, 1e6, "observations until an old density counts half")
    window_queries: int = _setting(8, 1, 64, "observations that the top-k membership of a node looks back on")
    top_fraction: float = _setting(
        0.4, 0.001, 1, "share of a query's nodes, by density, that count as its top"
    )
    ghost_factor: float = _setting(
        4, 0, 1000, "evicted nodes remembered, as a multiple of the most nodes ever held"
    )
    pin_fraction: float = _setting(0.25, 0, 1, "share of the device pool that pins may protect")
    law_path: str = _text("", "file that keeps the learned law of reuse over restarts; empty keeps none")
    trim_tokens: int = _setting(
        64, 0, 1e9, "shortest tail that is cut off a long leaf to free a little; 0 drops whole leaves"
    )

    importance_scorer: str = _choice(
        "softmax",
        ("softmax", "quest", "blast", "indexer", "structural", "shuffled"),
        "what attention is taken as: its mass, upper bounds of blocks, margins of blocks, a native indexer's choice; "
        "structural observes none, shuffled deals true values to other nodes (the control)",
    )
    tap_layers: int = _setting(4, 1, 1024, "layers that are observed, spread over the depth")
    tap_queries: int = _setting(32, 1, 1024, "last tokens of a prompt whose attention is observed")
    tap_query_stride: int = _setting(4, 1, 1024, "of these every n-th is observed")
    tap_decode_every: int = _setting(0, 0, 1e6, "every n-th decode step is observed, too; 0: none")
    tap_heads: str = _choice("mean", ("mean", "max"), "how the heads of a layer become one")
    what_if_rate: float = _setting(
        0.01, 0, 1, "share of the tokens sampled for what more memory would hit; 0 samples none"
    )
    hotspot_queries: int = _setting(
        50, 1, 1e9, "requests of a tenant from which on prefixes that they share are called hotspots"
    )
    load_back: bool = _setting(
        False,
        0,
        1,
        "bring hotspots and prefixes that are expected soon from the host to the device while the server idles",
    )
    load_back_step_tokens: int = _setting(2048, 16, 1e6, "tokens that one idle step brings at most")
    load_back_pool_fraction: float = _setting(
        0.25, 0.01, 1, "share of the device pool that may hold what was brought and not used yet"
    )
    hotspots_file: str = _text(
        "",
        "file that keeps hotspots with their prompts over restarts, to be prefilled at start; empty keeps none",
    )
    hotspots_interval_s: float = _setting(60, 1, 86400, "seconds between two writes of hotspots_file")
    hotspots_restore_s: float = _setting(
        120, 1, 86400, "seconds after the start in which prompts of hotspots_file are prefilled"
    )
    fetch_decision: str = _choice(
        "stock",
        ("stock", "measure", "cost", "recompute"),
        "host KV that a request could use: SGLang's rule (fetch all of 10 tokens and more); the same, and times are "
        "measured; what is predicted soonest by what was measured; always computed again (the control)",
    )
    record_path: str = _text(
        "", "file to which cache operations are recorded, for `radiximp replay`; empty: none"
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _checked(field, getattr(self, field.name)))
        if self.importance_scorer == "indexer" and self.tap_decode_every:
            raise ConfigError(
                "tap_decode_every: expected 0 with importance_scorer indexer, which sees prompts only"
            )

        if self.record_path and self.fetch_decision == "cost":
            raise ConfigError(
                "record_path: expected none with fetch_decision cost, whose cuts of host nodes a record does not hold"
            )

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any] | None) -> PolicyConfig:
        """The configuration that a flag's JSON object describes; None or {} is the default.

        Raises ConfigError for an unknown key, a wrong type or a value out of range.
        """
        mapping = mapping or {}
        known = [field.name for field in dataclasses.fields(cls)]
        for key in mapping:
            if key not in known:
                raise ConfigError(f"unknown key {key!r}; expected one of {', '.join(known)}")
        return cls(**mapping)

    @property
    def is_lru(self) -> bool:
        """Whether the settings reduce to SGLang's lru: recency alone, whole leaves."""
        return self.half_life_s == 0


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond any float
        return False


def _checked(field: dataclasses.Field, value: Any) -> Any:
    choices = field.metadata.get("choices")
    if choices is not None:
        if value not in choices:
            raise ConfigError(f"{field.name}: expected one of {', '.join(choices)}, got {value!r}")
        return value
    if field.type == "str":
        if not isinstance(value, str) or "\0" in value:
            raise ConfigError(f"{field.name}: expected a text, got {value!r}")
        return value
    low, high = field.metadata["low"], field.metadata["high"]
    if field.type == "bool":
        if not isinstance(value, bool):
            raise ConfigError(f"{field.name}: expected true or false, got {value!r}")
        return value
    wanted = "an integer" if field.type == "int" else "a number"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not _is_finite(value) or (field.type == "int" and value != int(value)):
        raise ConfigError(f"{field.name}: expected {wanted} from {low:g} to {high:g}, got {value!r}")
    if not low <= value <= high:
        raise ConfigError(
            f"{field.name}: {value!r} is out of range; expected {wanted} from {low:g} to {high:g}"
        )
    return int(value) if field.type == "int" else float(value)
