"""Scorers against dense float64 attention and their definitions, over random shapes, dtypes, cuts and windows."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radiximp.importance.density import TokenMass
from radiximp.importance.scorers import SCORERS
from radiximp.importance.scorers.base import logits, visible
from radiximp.importance.scorers.blast import blast_margins
from radiximp.importance.scorers.indexer import indexer_mass
from radiximp.importance.scorers.quest import quest_bounds
from radiximp.importance.window import NUM_SINK_TOKENS, ObservationWindow
from tests.kernel_cases import SHAPES

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-5, torch.float16: 2e-5}


@st.composite
def cases(draw):
    """(q, keys, positions, block_tokens, scale, window) of one request."""
    num_kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    head_dim = draw(st.sampled_from([8, 20, 64]))
    num_keys = draw(st.integers(1, 150))
    num_queries = draw(st.integers(1, min(8, num_keys)))
    dtype = draw(st.sampled_from(list(TOLERANCES)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    q = 3 * torch.randn(num_queries, num_kv_heads * group, head_dim, generator=generator)
    keys = torch.randn(num_keys, num_kv_heads, head_dim, generator=generator)
    positions = torch.sort(torch.randperm(num_keys, generator=generator)[:num_queries]).values
    window = draw(st.none() | st.integers(0, num_keys))
    return q.to(dtype), keys.to(dtype), positions, draw(st.integers(1, 40)), head_dim**-0.5, window


def dense(q, keys, positions, scale, window) -> torch.Tensor:
    """[num_queries, num_heads, num_keys] float64, one query, head and key at a time."""
    num_queries, num_heads, _ = q.shape
    group = num_heads // keys.shape[1]
    mass = torch.zeros(num_queries, num_heads, len(keys), dtype=torch.float64)
    for i, position in enumerate(positions.tolist()):
        first = 0 if window is None else max(0, position - window)
        for head in range(num_heads):
            seen = keys[first : position + 1, head // group].double()
            mass[i, head, first : position + 1] = (seen @ q[i, head].double() * scale).softmax(0)
    return mass


@given(cases())
@settings(max_examples=150)
def test_softmax_is_dense_attention(case):
    q, keys, positions, block_tokens, scale, window = case
    mass = SCORERS["softmax"](q, keys, positions, block_tokens, scale, window)
    assert torch.allclose(mass.double(), dense(q, keys, positions, scale, window), atol=TOLERANCES[q.dtype])


@given(cases())
@settings(max_examples=150)
def test_quest_is_never_below_the_true_maximum(case):
    q, keys, _, block_tokens, scale, _ = case
    bounds = quest_bounds(q, keys, block_tokens, scale)
    true = logits(q, keys, scale)
    for block, begin in enumerate(range(0, len(keys), block_tokens)):
        largest = true[:, :, begin : begin + block_tokens].amax(-1)
        assert (bounds[:, :, block] >= largest - 1e-4 * (1 + largest.abs())).all()


@given(cases())
@settings(max_examples=150)
def test_blast_is_local_maximum_minus_running_maximum(case):
    q, keys, positions, block_tokens, scale, window = case
    seen = visible(positions, len(keys), window)
    margins = blast_margins(q, keys, seen, block_tokens, scale)
    true = logits(q, keys, scale)
    for i in range(len(q)):
        running = torch.full((q.shape[1],), -torch.inf)
        for block, begin in enumerate(range(0, len(keys), block_tokens)):
            span = slice(begin, begin + block_tokens)
            if not seen[i, span].any():
                assert (margins[i, :, block] == -torch.inf).all()
                continue
            local = true[i, :, span][:, seen[i, span]].amax(-1)
            running = torch.maximum(running, local)
            assert torch.allclose(margins[i, :, block], local - running, atol=1e-5)


@pytest.mark.parametrize("name", sorted(SCORERS))
@given(case=cases())
@settings(max_examples=60)
def test_a_scorer_gives_no_mass_to_what_a_query_does_not_see(name, case):
    q, keys, positions, block_tokens, scale, window = case
    mass = SCORERS[name](q, keys, positions, block_tokens, scale, window)
    assert mass.shape == (len(q), q.shape[1], len(keys)) and mass.dtype == torch.float32
    assert torch.isfinite(mass).all() and (mass >= 0).all()
    assert (mass.masked_select(~visible(positions, len(keys), window)[:, None].expand_as(mass)) == 0).all()


def test_an_indexers_choice_shares_the_mass():
    top = torch.tensor([[0, 3, -1], [2, 1, 4], [-1, -1, -1]])
    mass = indexer_mass(top, 5)
    third = 1 / 3
    expected = [[[0.5, 0, 0, 0.5, 0]], [[0, third, third, 0, third]], [[0, 0, 0, 0, 0]]]
    assert torch.allclose(mass, torch.tensor(expected))
    assert torch.equal(indexer_mass(torch.tensor([[5, 1]]), 5), torch.tensor([[[0.0, 1, 0, 0, 0]]]))


@given(
    num_tokens=st.integers(1, 300), num_cached=st.integers(0, 299), num_queries=st.integers(1, 64),
    stride=st.integers(1, 8), block_tokens=st.integers(1, 32), cuts=st.lists(st.integers(0, 300), max_size=5),
)  # fmt: skip
@settings(max_examples=300)
def test_the_watched_queries_do_not_depend_on_chunks(
    num_tokens, num_cached, num_queries, stride, block_tokens, cuts
):
    window = ObservationWindow(num_tokens, min(num_cached, num_tokens - 1), num_queries, stride, block_tokens)
    edges = sorted({window.first_new, num_tokens, *(c for c in cuts if window.first_new < c < num_tokens)})
    chunks = [row for a, b in zip(edges, edges[1:], strict=False) for row in window.rows(a, b)]
    assert chunks == window.rows(window.first_new, num_tokens)
    assert num_tokens - 1 in chunks and len(chunks) <= -(-num_queries // stride)
    assert all(window.end_key <= row for row in chunks) and window.end_key % block_tokens == 0


def observed(mass: torch.Tensor, block_tokens: int) -> TokenMass:
    """`mass` [num_layers, num_queries, num_keys] of a prompt that has one more block, the queries' own."""
    window = ObservationWindow(mass.shape[2] + len(mass[0]), mass.shape[2], len(mass[0]), 1, block_tokens)
    tokens = TokenMass(window, len(mass))
    for layer, values in enumerate(mass):
        tokens.add(layer, values[:, None])
    return tokens


def test_density_is_mass_share_over_token_share():
    generator = torch.Generator().manual_seed(1)
    mass = torch.rand(2, 6, 64, generator=generator)
    densities = observed(mass, 16).block_densities(exclude_sinks=False)
    counted = mass[:, :, NUM_SINK_TOKENS:].sum(1)
    shares = counted / counted.sum(1, keepdim=True)
    by_hand = [float((shares[:, a - NUM_SINK_TOKENS : b - NUM_SINK_TOKENS].sum(1) * 60 / (b - a)).mean())
               for a, b in ((NUM_SINK_TOKENS, 16), (16, 32), (32, 48), (48, 64))]  # fmt: skip
    assert torch.allclose(densities, torch.tensor(by_hand), atol=1e-5)


def test_a_layer_with_little_mass_counts_as_much_as_one_with_much():
    generator = torch.Generator().manual_seed(2)
    mass = torch.rand(2, 6, 64, generator=generator)
    scaled = mass * torch.tensor([1.0, 1000.0])[:, None, None]
    assert torch.allclose(
        observed(mass, 16).block_densities(), observed(scaled, 16).block_densities(), atol=1e-4
    )


def test_a_token_that_all_queries_attend_to_alike_is_a_sink_and_one_that_some_want_is_not():
    mass = torch.full((1, 8, 64), 0.001)
    mass[0, :, 20] = 0.3
    mass[0, ::4, 40] = 0.3
    tokens = observed(mass, 16)
    assert tokens.secondary_sinks().nonzero().tolist() == [[0, 20]]
    with_sinks, without = tokens.block_densities(exclude_sinks=False), tokens.block_densities()
    assert with_sinks[1] > 2 * with_sinks[2] and without[2] > 2 and without[1] < 0.5


def test_three_queries_do_not_tell_who_is_indifferent():
    mass = torch.full((1, 3, 64), 0.001)
    mass[0, :, 20] = 0.3
    assert not observed(mass, 16).secondary_sinks().any()


def test_a_block_outside_a_sliding_window_says_nothing():
    tokens = observed(torch.rand(1, 8, 64, generator=torch.Generator().manual_seed(3)), 16)
    tokens.limit(0, attention_window=40)
    assert tokens.block_densities().isnan().tolist() == [True, False, False, False]


def test_the_kernel_equals_its_reference_in_tritons_interpreter():
    """A process of its own: Triton decides at its import whether it interprets."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.kernel_cases", "cpu"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.splitlines()[-1] == f"{4 * len(SHAPES)} cases equal the reference"
