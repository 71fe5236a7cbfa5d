"""What density adds beyond the other features, on questions whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from eval.node_level import information, replay, traffic
from eval.node_level.information import Questions, gain
from eval.node_level.traffic import Turn


def questions(seed: int, tells: bool) -> tuple[Questions, np.ndarray]:
    """4,000 of them in 20 conversations; where it tells, a high density doubles the chance of a use."""
    rng = np.random.default_rng(seed)
    number = 4000
    density = rng.choice([0.3, 3.0], number)
    feature = rng.integers(0, 3, number)
    chance = 0.1 + 0.1 * feature + (0.3 * (density > 1) if tells else 0)
    reuse_s = np.where(rng.random(number) < chance, 10.0, np.inf)
    talk = np.array([f"t{i % 20}" for i in range(number)])
    return Questions(np.eye(3)[feature], density, reuse_s, talk), np.arange(number) % 2 == 0


def test_bits_are_found_where_there_are_some_and_not_where_there_are_none():
    told, is_dev = questions(0, True)
    found = gain(told, 60.0, is_dev)
    assert found["bits_added"][1] > 0.02
    assert gain(told, 60.0, is_dev, shuffled_seed=0)["bits_added"][0] < 0.005
    none, is_dev = questions(1, False)
    assert abs(gain(none, 60.0, is_dev)["bits_added"][0]) < 0.005


def test_chances_are_calibrated():
    told, is_dev = questions(2, True)
    for chance, share in gain(told, 60.0, is_dev)["calibration"]:
        assert share == pytest.approx(chance, abs=0.12)


def conversations(number: int, density: float = 1.0) -> dict[str, list[Turn]]:
    """Three turns each after a head of ten pages that all share."""
    found = {}
    for i in range(number):
        pages = np.concatenate([np.arange(10), 1000 * (i + 1) + np.arange(60)]).astype(np.int64)
        found[f"tools {i}"] = [
            Turn(f"tools {i}", pages[:n], n * 16, 2, np.full(n, density), 16) for n in (30, 50, 70)
        ]
    return found


def test_zero_weight_ignores_what_is_observed_and_no_size_hits_what_was_never_seen():
    turns = conversations(20)
    orders = traffic.arrivals(turns, 0)
    assert [a.at_s for a in orders] == sorted(a.at_s for a in orders)
    flat = replay.replayed(orders, "importance-zero", 300)
    high = replay.replayed(traffic.arrivals(conversations(20, 7.0), 0), "importance-zero", 300)
    assert flat["hit_tokens"] == high["hit_tokens"]
    for policy in replay.POLICIES:
        found = replay.replayed(orders, policy, 10_000)
        assert found["prompt_tokens"] > found["hit_tokens"] > 0


def test_content_ids_agree_as_far_as_texts_do():
    a, b = list(range(100)), [*range(40), *range(60)]
    ids_a, ids_b = traffic.content_ids(a), traffic.content_ids(b)
    assert (ids_a[:2] == ids_b[:2]).all() and not set(ids_a[2:].tolist()) & set(ids_b[2:].tolist())


def test_nodes_are_messages_with_pages_of_their_own():
    turn = Turn("tools 0", np.arange(5), 80, 3, np.ones(5), 16)
    spans = [("system", 0, 40), ("user", 40, 45), ("assistant", 45, 85), ("user", 85, 100)]
    assert information.nodes_of(turn, spans) == [(1, 0, 0, 2), (4, 2, 2, 5)]
