"""From a model's attention over one conversation to rows of page densities, per layer, averaged, and raw.

A row's densities are as the tap's: mass share / token share of each page within a layer, 1.0 = as attended as the average token. A
query's own page and the one before it are left out: no cache would ever evict them. Answers are recorded text (teacher forcing).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from eval.block_level.page_caches import Rows
from eval.talks import Encoded
from radiximp.importance.window import NUM_SINK_TOKENS

if TYPE_CHECKING:  # torch is loaded by who observes, not by who judges
    from eval.model_attention import ModelAttention

PAGE_TOKENS = 16
STEPS_A_TURN = 48
HEADER_TOKENS = 3  # of "<|im_start|>assistant\n"
MEAN, RAW = "mean of layers", "raw sum of layers, sinks in"
SOURCES = ("softmax", "quest", "blast")
# Least kept first; a tool schema is part of the system message here.
ROLE_RANKS = {"tool": 0, "assistant": 1, "user": 2, "system": 3}


def variants(layers: Sequence[int]) -> list[str]:
    """Names of what a row is computed from."""
    return [MEAN, RAW, *(f"layer {layer}" for layer in layers)]


def page_densities(mass: np.ndarray, counted: np.ndarray, num_pages: np.ndarray) -> np.ndarray:
    """[num_queries, pages] of mass [num_queries, tokens] and counted [tokens] bool; NaN beyond a query's num_pages and where nothing counts."""
    pages = mass.shape[1] // PAGE_TOKENS
    whole = pages * PAGE_TOKENS
    page_mass = (mass * counted)[:, :whole].reshape(len(mass), pages, PAGE_TOKENS).sum(-1)
    tokens = counted[:whole].reshape(pages, PAGE_TOKENS).sum(-1)
    is_seen = (np.arange(pages) < num_pages[:, None]) & (tokens > 0)
    page_mass = np.where(is_seen, page_mass, 0.0)
    average = page_mass.sum(1, keepdims=True) / np.maximum((is_seen * tokens).sum(1, keepdims=True), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(is_seen, page_mass / (tokens * average), np.nan)


def turns_of(talk: Encoded) -> list[tuple[int, int]]:
    """(where the answer's own tokens begin, where they end) of each assistant message after a prompt of two pages or more."""
    found = []
    for role, begin, end in talk.spans:
        if role == "assistant" and begin >= 4 * PAGE_TOKENS and end - begin > HEADER_TOKENS + 4:
            found.append((begin + HEADER_TOKENS, min(end, begin + HEADER_TOKENS + STEPS_A_TURN)))
    return found


def observe(model: ModelAttention, talk: Encoded) -> dict[str, Rows]:
    """Rows of each variant, after one pass over the conversation. Ranks of post-hoc scorers are in the mean's scores alone."""
    model.read(talk.ids)
    turns = turns_of(talk)
    num_pages = len(talk.ids) // PAGE_TOKENS
    layers, width = model.layers, num_pages * PAGE_TOKENS
    sinks = {layer: np.arange(width) < NUM_SINK_TOKENS for layer in layers}
    found: dict[tuple[str, str], list[np.ndarray]] = {}
    is_start, turn_of, pages_of, end_before = [], [], [], 0

    def keep(variant: str, source: str, rows: np.ndarray) -> None:
        whole = np.full((len(rows), num_pages), np.nan, np.float32)
        whole[:, : rows.shape[1]] = rows[:, :num_pages]
        found.setdefault((variant, source), []).append(whole)

    for number, (begin, end) in enumerate(turns):
        _prompt_rows(model, begin, end_before, sinks, keep)
        positions = list(range(begin, end))
        visible = np.array([position // PAGE_TOKENS - 1 for position in positions])
        _step_rows(model, positions, visible, sinks, keep, width)
        is_start += [True] + [False] * len(positions)
        turn_of += [number] * (1 + len(positions))
        pages_of += [int(visible[0]), *visible.tolist()]
        end_before = end
    role_rank = np.array([ROLE_RANKS.get(talk.role_of(page * PAGE_TOKENS), 1) for page in range(num_pages)])
    made = {}
    for variant in variants(layers):
        scores = {
            source: np.concatenate(found[variant, source]) for source in SOURCES if (variant, source) in found
        }
        truth = np.nan_to_num(scores["softmax"])
        made[variant] = Rows(
            np.array(is_start), np.array(turn_of), np.array(pages_of), scores, truth, role_rank
        )
    return made


def _prompt_rows(model: ModelAttention, num_tokens: int, first_new: int, sinks: dict, keep) -> None:
    """What the tap observes of the prompt that ends before `num_tokens`; adds what it finds to the sinks."""
    for source in SOURCES:
        tokens = model.observe(num_tokens, first_new, block_tokens=PAGE_TOKENS, scorer=source)
        keep(MEAN, source, tokens.block_densities().numpy()[None])
        if source != "softmax":
            continue
        keep(RAW, source, tokens.block_densities(exclude_sinks=False, normalise_layers=False).numpy()[None])
        for index, layer in enumerate(model.layers):
            secondary = tokens.secondary_sinks()[index].numpy()
            sinks[layer][: len(secondary)] |= secondary[: len(sinks[layer])]
            alone = model.observe(num_tokens, first_new, block_tokens=PAGE_TOKENS, layers=[layer])
            keep(f"layer {layer}", source, alone.block_densities().numpy()[None])


def _step_rows(
    model: ModelAttention, positions: list[int], visible: np.ndarray, sinks: dict, keep, width: int
) -> None:
    """Densities of every decode step of a turn."""
    for source in SOURCES:
        by_layer, raw = [], 0.0
        for layer in model.layers:
            mass = model.masses(positions, source, layer, PAGE_TOKENS).numpy()[:, :width]
            mass = np.pad(mass, ((0, 0), (0, width - mass.shape[1])))
            densities = page_densities(mass, ~sinks[layer], visible)
            by_layer.append(densities)
            raw = raw + mass
            if source == "softmax":
                keep(f"layer {layer}", source, densities)
        # A page that is nothing but sinks in one layer is judged by the others.
        known = ~np.isnan(by_layer)
        keep(
            MEAN, source, np.where(known.any(0), np.nansum(by_layer, 0) / np.maximum(known.sum(0), 1), np.nan)
        )
        if source == "softmax":
            keep(RAW, source, page_densities(raw, np.ones(width, bool), visible))
