"""Bits that a node's density adds to recency, frequency, role and depth, on conversations that the estimate has not seen.

At each request every known node that it does not use is a question: will it be used within the horizon? Two logistic regressions on
binned features, one with the density, are fitted on half of the conversations; the difference of their log losses on the other half,
in bits per question, is what the density tells. It is negative where it tells nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eval.bootstrap import interval_of
from eval.node_level.traffic import PAGE_TOKENS, Arrival

HORIZONS_S = (60.0, 600.0)
SAMPLED = 0.05
ROLES = ("system", "user", "assistant", "tool")
ALPHA = 0.5  # the server's default half-life of one query
_RIDGE, _STEPS = 1.0, 25
_DENSITY_EDGES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)


@dataclass
class Questions:
    """features: [num, columns] 0/1; density: [num]; reuse_s: [num] seconds until the next use, inf for none; talk: [num]."""

    features: np.ndarray
    density: np.ndarray
    reuse_s: np.ndarray
    talk: np.ndarray


@dataclass
class _Node:
    talk: str
    role: int
    depth_tokens: int
    uses: list[float]
    num_uses: int = 0
    last_s: float = 0.0
    density: float = float("nan")


def nodes_of(turn, roles: Sequence[tuple[str, int, int]]) -> list[tuple[int, int, int, int]]:
    """(id, role, first page, end page) of each message of the prompt that has a page of its own; the id is its last page's."""
    found, begin = [], 0
    for role, _, end_token in roles[: turn.end]:
        end = min(end_token // PAGE_TOKENS, len(turn.page_ids))
        if end > begin:
            found.append((int(turn.page_ids[end - 1]), ROLES.index(role) if role in ROLES else 1, begin, end))
            begin = end
    return found


def questions_of(
    arrivals: Sequence[Arrival], roles: dict[str, Sequence[tuple[str, int, int]]], seed: int
) -> Questions:
    """A sample of all (request, node) pairs. A node that several conversations share belongs to none of them ("")."""
    rng = random.Random(f"questions {seed}")
    paths = [nodes_of(arrival.turn, roles[arrival.turn.talk]) for arrival in arrivals]
    nodes: dict[int, _Node] = {}
    for arrival, path in zip(arrivals, paths, strict=True):
        for key, role, begin, _ in path:
            node = nodes.setdefault(key, _Node(arrival.turn.talk, role, begin * PAGE_TOKENS, []))
            node.uses.append(arrival.at_s)
            if node.talk != arrival.turn.talk:
                node.talk = ""
    known: dict[int, _Node] = {}
    rows = []
    for arrival, path in zip(arrivals, paths, strict=True):
        now_s, used = arrival.at_s, {key for key, *_ in path}
        for key, node in known.items():
            if key not in used and rng.random() < SAMPLED:
                following = (
                    node.uses[node.num_uses] - now_s if node.num_uses < len(node.uses) else float("inf")
                )
                rows.append(
                    (
                        now_s - node.last_s,
                        node.num_uses,
                        node.role,
                        node.depth_tokens,
                        node.density,
                        following,
                        node.talk,
                    )
                )
        for key, _, begin, end in path:
            node = known.setdefault(key, nodes[key])
            node.num_uses += 1
            node.last_s = now_s
            values = arrival.turn.densities[begin:end]
            if not np.isnan(values).all():
                value = float(np.nanmean(values))
                node.density = (
                    value if np.isnan(node.density) else node.density + ALPHA * (value - node.density)
                )
    age, uses, role, depth, density, reuse_s, talk = (np.array(column) for column in zip(*rows, strict=True))
    age_bin = np.clip(np.log2(age + 1).astype(int), 0, 11)
    use_bin = np.clip(np.log2(uses).astype(int), 0, 4)
    columns = [_one_hot(age_bin, 12), _one_hot(use_bin, 5), _one_hot(role, 4), _one_hot(np.clip(np.log2(depth + 1).astype(int), 0, 12), 13),
               _one_hot(age_bin * 5 + use_bin, 60)]  # fmt: skip
    return Questions(np.concatenate(columns, 1), density, reuse_s, talk)


def _one_hot(values: np.ndarray, number: int) -> np.ndarray:
    return np.eye(number)[values.astype(int)]


def density_features(density: np.ndarray) -> np.ndarray:
    """Which of eight ranges; all zero for a node that was never observed."""
    known = ~np.isnan(density)
    return (
        _one_hot(np.searchsorted(_DENSITY_EDGES, np.nan_to_num(density)), len(_DENSITY_EDGES) + 1)
        * known[:, None]
    )


def fitted(features: np.ndarray, is_used: np.ndarray) -> np.ndarray:
    """[columns + 1] weights, the last for the constant: ridge logistic regression by Newton's method."""
    x = np.concatenate([features, np.ones((len(features), 1))], 1)
    weights = np.zeros(x.shape[1])
    penalty = np.full(x.shape[1], _RIDGE)
    penalty[-1] = 1e-6
    for _ in range(_STEPS):
        chance = predicted(weights, features)
        gradient = x.T @ (chance - is_used) + penalty * weights
        hessian = (x * (chance * (1 - chance))[:, None]).T @ x + np.diag(penalty)
        step = np.linalg.solve(hessian, gradient)
        weights -= step
        if np.abs(step).max() < 1e-6:
            break
    return weights


def predicted(weights: np.ndarray, features: np.ndarray) -> np.ndarray:
    """[num] chances of a use."""
    return 1 / (1 + np.exp(-np.clip(features @ weights[:-1] + weights[-1], -30, 30)))


def bits(chance: np.ndarray, is_used: np.ndarray) -> np.ndarray:
    """[num] log loss in bits."""
    return -np.log2(np.clip(np.where(is_used, chance, 1 - chance), 1e-9, 1))


def gain(
    questions: Questions, horizon_s: float, is_dev: np.ndarray, shuffled_seed: int | None = None
) -> dict:
    """Bits added on the test conversations with a 95 % interval over them, and how well calibrated the chances are.

    is_dev: [num]. shuffled_seed: deal the densities to other nodes first (the control).
    """
    density = questions.density
    if shuffled_seed is not None:
        density = np.random.default_rng(shuffled_seed).permutation(density)
    is_used = questions.reuse_s <= horizon_s
    with_density = np.concatenate([questions.features, density_features(density)], 1)
    dev, test = is_dev, ~is_dev
    plain = predicted(fitted(questions.features[dev], is_used[dev]), questions.features[test])
    full = predicted(fitted(with_density[dev], is_used[dev]), with_density[test])
    entropy = bits(np.full(test.sum(), is_used[dev].mean()), is_used[test])
    loss, loss_with = bits(plain, is_used[test]), bits(full, is_used[test])
    groups = []
    for talk in dict.fromkeys(questions.talk[test].tolist()):
        own = questions.talk[test] == talk
        groups.append([(loss - loss_with)[own].sum(), (entropy - loss)[own].sum(), own.sum()])
    return {
        "horizon_s": horizon_s, "questions": int(test.sum()), "conversations": len(groups), "reused": float(is_used[test].mean()),
        "bits_added": interval_of(groups, lambda sums: sums[0] / sums[2]), "bits_before": interval_of(groups, lambda sums: sums[1] / sums[2]),
        "calibration": calibration(full, is_used[test]),
    }  # fmt: skip


def calibration(chance: np.ndarray, is_used: np.ndarray) -> list[list[float]]:
    """Per tenth of the questions by chance: [mean chance, share used]."""
    order = np.array_split(np.argsort(chance, kind="stable"), 10)
    return [[float(chance[part].mean()), float(is_used[part].mean())] for part in order if len(part)]
