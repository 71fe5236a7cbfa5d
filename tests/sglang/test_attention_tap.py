"""The tap on the real backend, pool and tree: what it sees, what it leaves alone, and where an observation may go."""

from __future__ import annotations

import random
from array import array
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, Req
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.sampling.sampling_params import SamplingParams

from radiximp.config import PolicyConfig
from radiximp.importance.density import TokenMass
from radiximp.importance.window import NUM_SINK_TOKENS, ObservationWindow
from radiximp.serving.attention_tap.harvest import harvest, mean_over_ranks
from radiximp.serving.attention_tap.layers import attention_layers, spread
from radiximp.serving.attention_tap.tap import AttentionTap, Observation
from tests.sglang.attention_rig import Rig, Shape
from tests.sglang.builders import build_cache, insert, key_of

LENGTH = 320  # tokens of the longest prompt


class Server:
    """The forward side of a server: prompts go through the tapped backend in chunks, in batches of any mix."""

    def __init__(self, page_size: int = 1, window: int = -1, **config) -> None:
        self.rig = Rig(Shape(window=window), num_slots=8 * LENGTH, max_tokens=LENGTH, page_size=page_size)
        self.runner = SimpleNamespace(
            attn_backend=self.rig.ours,
            decode_attn_backend=self.rig.ours,
            dtype=torch.bfloat16,
            device="cpu",
            model=torch.nn.ModuleList([self.rig.layer]),
            token_to_kv_pool=self.rig.pool,
            req_to_token_pool=SimpleNamespace(req_to_token=self.rig.req_to_token),
        )
        self.plain_forward = self.rig.ours.forward
        self.config = PolicyConfig(**config)
        self.tap = AttentionTap(self.runner, self.config, page_size)
        self.queries: dict[str, torch.Tensor] = {}

    def request(self, name: str, num_tokens: int, row: int, **namespace) -> Req:
        tokens = array("q", random.Random(name).choices(range(1, 10_000), k=num_tokens))
        request = Req(name, "", tokens, SamplingParams(max_new_tokens=4), **namespace)
        request.full_untruncated_fill_ids = tokens
        request.kv = SimpleNamespace(req_pool_idx=row)
        self.queries[name] = self.rig.random(num_tokens, self.rig.shape.num_heads)
        return request

    def forward(self, chunks: list[tuple[Req, int, int]], decoding: tuple[Req, ...] = ()) -> torch.Tensor:
        """One extend batch of (request, first, end); the requests in `decoding` ride along as one-token chunks."""
        requests, firsts, ends = zip(*chunks, strict=True)
        batch = SimpleNamespace(
            forward_mode=ForwardMode.EXTEND,
            reqs=list(requests),
            decoding_reqs=list(decoding),
            prefix_lens=list(firsts),
            extend_lens=[end - first for first, end in zip(firsts, ends, strict=True)],
        )
        rows = [request.kv.req_pool_idx for request in requests]
        forward_batch = self.rig.batch(rows, list(ends), list(firsts), ForwardMode.EXTEND)
        q = torch.cat([self.queries[request.rid][first:end] for request, first, end in chunks])
        k, v = self.new_keys(len(q)), self.new_keys(len(q))
        self.rig.ours.init_forward_metadata(forward_batch)
        self.tap.begin(batch)
        output = self.rig.ours.forward(q, k, v, self.rig.layer, forward_batch)
        assert torch.equal(
            output, self.plain_forward(q, k, v, self.rig.layer, forward_batch, save_kv_cache=False)
        )
        return output

    def new_keys(self, num_tokens: int) -> torch.Tensor:
        shape = self.rig.shape
        return self.rig.random(num_tokens, shape.num_kv_heads).view(num_tokens, shape.num_kv_heads, -1)

    def expected(self, request: Req, first_new: int, steps: list[int] | None = None) -> torch.Tensor:
        """[num_blocks] float64 densities from dense attention over what the pool holds now; secondary sinks do not
        occur in random keys. steps: positions of decode steps that were observed, too."""
        num_tokens, config = len(request.full_untruncated_fill_ids), self.config
        block = self.tap._block_tokens
        begin = max(num_tokens - config.tap_queries, first_new)
        positions = [
            p for p in range(begin, num_tokens) if (num_tokens - 1 - p) % config.tap_query_stride == 0
        ]
        end_key, num_keys = begin // block * block, num_tokens + 8 * bool(steps)
        positions += steps or []
        slots = self.rig.req_to_token[request.kv.req_pool_idx, :num_keys].long()
        shape = self.rig.shape
        keys = self.rig.pool.get_key_buffer(0)[slots].double()
        keys = keys.repeat_interleave(shape.num_heads // shape.num_kv_heads, 1)
        total, key = torch.zeros(num_keys, dtype=torch.float64), torch.arange(num_keys)
        for position in positions:
            q = self.queries[request.rid][position].double().view(shape.num_heads, -1)
            scores = torch.einsum("hd,khd->hk", q, keys) * self.rig.layer.scaling
            hidden = key > position
            if shape.window >= 0:
                hidden |= key < position - shape.window
            mass = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            total += mass.mean(0) if config.tap_heads == "mean" else mass.amax(0)
        first_key = NUM_SINK_TOKENS
        if shape.window >= 0:
            first_key = max(first_key, num_tokens - 1 - shape.window)
        counted = (key >= first_key) & (key < end_key)
        average = total[counted].mean()
        blocks = [counted[b : b + block].nonzero().flatten() + b for b in range(0, end_key, block)]
        return torch.stack([total[b].mean() / average for b in blocks])


def cut(first: int, end: int, cuts: list[int]) -> list[tuple[int, int]]:
    edges = sorted({first, end, *(c for c in cuts if first < c < end)})
    return list(zip(edges, edges[1:], strict=False))


@given(
    length=st.integers(40, LENGTH), cached=st.integers(0, LENGTH), cuts=st.lists(st.integers(0, LENGTH), max_size=4),
    neighbour=st.integers(1, 100), page_size=st.sampled_from([1, 16, 40]), window=st.sampled_from([-1, -1, 100]),
    heads=st.sampled_from(["mean", "max"]),
)  # fmt: skip
@settings(max_examples=40)
def test_an_observation_is_dense_attentions_however_it_is_cut_and_batched(
    length, cached, cuts, neighbour, page_size, window, heads
):
    server = Server(page_size, window, tap_heads=heads)
    request, cached = server.request("watched", length, 1), min(cached, length - 1)
    other = server.request("other", 100, 0)
    for first, end in cut(cached, length, cuts):
        server.forward([(other, neighbour - 1, neighbour), (request, first, end)], decoding=(other,))
    expected_blocks = max(0, max(length - 32, cached) // server.tap._block_tokens)
    if not expected_blocks:
        assert not hasattr(request, "radiximp_observation")
        return
    observed = request.radiximp_observation.values()
    assert torch.allclose(observed.double(), server.expected(request, cached), atol=2e-3, equal_nan=True)
    assert not hasattr(other, "radiximp_observation")


def decode_step(server: Server, request: Req) -> None:
    """The next token of a request: its query and key come into the pool, and out comes another token."""
    request.output_ids.append(7)
    length = len(request.origin_input_ids) + len(request.output_ids)
    row = request.kv.req_pool_idx
    forward_batch = server.rig.batch([row], [length], [length - 1], ForwardMode.DECODE)
    batch = SimpleNamespace(forward_mode=ForwardMode.DECODE, reqs=[request])
    q = server.rig.random(1, server.rig.shape.num_heads)
    server.queries[request.rid] = torch.cat((server.queries[request.rid], q))
    server.rig.ours.init_forward_metadata(forward_batch)
    server.tap.begin(batch)
    server.rig.ours.forward(q, server.new_keys(1), server.new_keys(1), server.rig.layer, forward_batch)
    server.tap.launched(batch)


def test_decode_steps_are_not_observed_unless_asked_for():
    server = Server()
    request = server.request("r", 100, 0)
    server.forward([(request, 0, 100)])
    before = server.tap.conclude(request)
    decode_step(server, request)
    request.finished_reason = FINISH_LENGTH(length=1)
    assert before is not None and server.tap.conclude(request) is None


def test_every_third_decode_step_counts_as_one_more_query_and_the_request_counts_once():
    server = Server(tap_decode_every=3)
    request = server.request("r", 100, 0)
    server.forward([(request, 0, 60)])
    server.forward([(request, 60, 100)])
    for _ in range(7):
        decode_step(server, request)
        assert server.tap.conclude(request) is None
    (num_queries,) = request.radiximp_prompt.mass.num_queries
    assert num_queries == 8 + 2
    expected = server.expected(request, 0, steps=[102, 105])
    request.finished_reason = FINISH_LENGTH(length=7)
    observed = server.tap.conclude(request).values()
    assert torch.allclose(observed.double(), expected, atol=2e-3)
    assert server.tap.conclude(request) is None


@pytest.mark.parametrize("seed", range(6))
def test_no_prompt_gets_what_another_attended_to(seed):
    """Requests that share rows and slots are cut, aborted, retracted and overwritten in a random order: each that ends has
    the densities of its own queries and keys, and the tree gives them to its own nodes alone."""
    rng = random.Random(seed)
    server, cache = Server(tap_query_stride=1), build_cache(8192)
    core, expected, running = cache.tree_core, {}, {}
    for number in range(60):
        row = rng.randrange(8)
        if row in running and rng.random() < 0.3:
            request, _ = running[row]
            if rng.random() < 0.5:
                del running[row]  # aborted: its row and slots go to another
            else:
                running[row] = (request, rng.choice([0, 16]))  # retracted: it starts over
        if row not in running:
            name = f"{seed}-{number}"
            running[row] = (server.request(name, rng.randrange(60, LENGTH), row, cache_salt=name), 0)
        request, first = running[row]
        length = len(request.full_untruncated_fill_ids)
        end = min(length, first + rng.randrange(1, 200))
        server.forward([(request, first, end)])
        running[row] = (request, end)
        if end == length:
            del running[row]
            # What its slots hold from now on is somebody else's.
            observation = getattr(request, "radiximp_observation", None)
            if observation is not None:
                before = observation.values().clone()
                server.rig.pool.get_key_buffer(0)[server.rig.req_to_token[row].long()] = torch.nan
                assert torch.equal(observation.values(), before)
                expected[request.rid] = (request, before)
            insert(cache, list(request.full_untruncated_fill_ids), cache_salt=request.cache_salt)
            server.rig.pool.get_key_buffer(0).normal_(generator=server.rig.generator)
            harvest(core, server.tap, [request])
            harvest(core, server.tap, [request])  # a second time there is nothing left
    assert len(expected) > 5
    assert core.num_observations == len(expected)
    for request, densities in expected.values():
        (node,) = core.describe(
            key_of(list(request.full_untruncated_fill_ids), cache_salt=request.cache_salt)
        )
        assert node["importance"] == pytest.approx(float(densities.mean()), abs=1 / 64)
        assert core.describe(key_of(list(request.full_untruncated_fill_ids))) == []


def test_a_prompt_that_left_the_tree_before_the_harvest_leaves_nothing():
    server, cache = Server(), build_cache(8192)
    request = server.request("gone", 200, 0)
    server.forward([(request, 0, 200)])
    insert(cache, list(request.full_untruncated_fill_ids))
    cache.reset()
    insert(cache, list(range(20_000, 20_200)))
    harvest(cache.tree_core, server.tap, [request])
    assert cache.tree_core.num_observations == 0
    core = cache.tree_core
    assert all(core.history_of(node).density == 1.0 for node in core._node_arena.values())


def test_shuffled_deals_true_values_to_other_nodes():
    true, shuffled = build_cache(8192), build_cache(8192, config={"importance_scorer": "shuffled"})
    prompts = [list(range(1000 * n, 1000 * n + 64)) for n in range(1, 40)]
    for cache in (true, shuffled):
        for n, prompt in enumerate(prompts):
            insert(cache, prompt)
            cache.tree_core.observe(key_of(prompt), [n / 8] * 64)
    values = [[c.tree_core.describe(key_of(p))[0]["importance"] for p in prompts] for c in (true, shuffled)]
    assert values[0] == [n / 8 for n in range(len(prompts))]
    assert set(values[1]) <= set(values[0]) and values[1] != values[0]


def test_importance_is_found_by_node_and_by_page_hash():
    cache, prompt = build_cache(8192), list(range(100, 164))
    insert(cache, prompt[:32])
    insert(cache, prompt)
    core = cache.tree_core
    core.observe(key_of(prompt), [0.5] * 32 + [2.0] * 32)
    first, second = (core.node_by_id(node["node"]) for node in core.describe(key_of(prompt)))
    assert (core.get_importance(first.id), core.get_importance(second.id)) == (0.5, 2.0)
    assert core.get_importance(core._page_hashes(first)[7]) == 0.5
    assert core.get_importance(core._page_hashes(second)[7]) == 2.0
    with pytest.raises(KeyError):
        core.get_importance("no such page")


def test_pages_that_a_query_tells_nothing_of_stay_as_they_are():
    cache, prompt = build_cache(8192), list(range(100, 164))
    insert(cache, prompt[:32])
    insert(cache, prompt)
    assert (
        cache.tree_core.observe(key_of(prompt), [float("nan")] * 32 + [2.0] * 16 + [float("nan")] * 16) == 1
    )
    assert [node["importance"] for node in cache.tree_core.describe(key_of(prompt))] == [1.0, 2.0]


def test_layers_are_spread_over_the_depth_and_those_without_a_window_come_first():
    server = Server()
    layers = [SimpleNamespace(layer_id=i) for i in range(30)]
    assert [layer.layer_id for layer in spread(layers, 4)] == [3, 11, 18, 26]
    assert spread(layers[:2], 4) == layers[:2]
    windowed = Server(window=64)
    assert attention_layers(windowed.runner) == [windowed.rig.layer]
    server.rig.layer.layer_id = 1
    windowed.runner.model.append(server.rig.layer)
    assert attention_layers(windowed.runner) == [server.rig.layer]


def test_layers_that_share_kv_are_watched_once():
    """Gemma's later layers read an earlier one's KV and carry its number."""
    server = Server()
    shared = Server().rig.layer
    assert attention_layers(SimpleNamespace(model=torch.nn.ModuleList([server.rig.layer, shared]))) == [
        server.rig.layer
    ]
    request = server.request("r", 100, 0)
    server.forward([(request, 0, 100)])
    before = server.tap.conclude(request).values()
    again = server.request("r", 100, 0)
    server.tap.begin(
        SimpleNamespace(
            forward_mode=ForwardMode.EXTEND,
            reqs=[again],
            decoding_reqs=None,
            prefix_lens=[0],
            extend_lens=[100],
        )
    )
    server.tap._look(server.rig.random(100, 9), layer=shared)
    assert server.tap.conclude(again) is None and not before.isnan().any()


def test_a_backend_of_a_hybrid_model_may_be_called_without_a_query():
    """SGLang's linear-attention layers name all arguments, and have no q."""
    server = Server(tap_decode_every=1)
    seen = []
    wrapped = server.tap._watched(lambda *args, **kwargs: seen.append((args, kwargs)) or "output")
    arguments = {"layer": object(), "forward_batch": object(), "mixed_qkv": torch.zeros(1), "a": 1, "b": 2}
    assert wrapped(**arguments) == "output" and seen == [((), arguments)]


def test_mass_that_lies_elsewhere_altogether_says_nothing():
    server = Server()
    window = ObservationWindow(100, 99, 1, 1, 16)
    tokens = TokenMass(window, 1)
    mass = torch.zeros(1, 1, window.end_key)
    mass[0, 0, 20] = 1e-42
    tokens.add(0, mass)
    assert tokens.block_densities().isnan().all()
    cache, prompt = build_cache(8192), list(range(100, 200))
    insert(cache, prompt)
    request = server.request("r", 100, 0)
    request.full_untruncated_fill_ids = array("q", prompt)
    request.radiximp_observation = Observation(100, 16, tokens.block_densities())
    harvest(cache.tree_core, server.tap, [request])
    assert cache.tree_core.num_observations == 0


def test_one_rank_alone_needs_no_collective():
    values = [torch.tensor([1.0, float("nan")])]
    assert mean_over_ranks(values, None) is values
