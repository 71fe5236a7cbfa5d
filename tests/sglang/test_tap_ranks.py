"""Observations on three ranks: averaged over a real process group, applied at the same step, deciding alike."""

from __future__ import annotations

import random
from types import SimpleNamespace

import torch
import torch.multiprocessing as multiprocessing

NUM_RANKS = 3
NUM_REQUESTS = 300


def serve(rank: int, rendezvous: str, digests: str) -> None:
    """The same requests on every rank; each rank's heads see something of their own, with noise."""
    import torch.distributed as dist

    from radiximp.serving.attention_tap.harvest import harvest
    from radiximp.serving.attention_tap.tap import Observation
    from tests.sglang.builders import build_cache, request

    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=NUM_RANKS)
    cache = build_cache(4096, tp_cache_group=dist.group.WORLD)
    tap = SimpleNamespace(conclude=lambda request: request.radiximp_observation)
    core, shared, own = cache.tree_core, random.Random(0), random.Random(1 + rank)
    for number in range(NUM_REQUESTS):
        core.observe_arrival(1e9 + 10.0 * number)
        head = shared.randrange(12)
        tokens = [1000 * head + i for i in range(64)] + [100_000 + 500 * number + i for i in range(200)]
        request(cache, tokens)
        common = torch.tensor([shared.expovariate(1.0) for _ in range(16)])
        noise = torch.tensor([1 + 1e-3 * own.gauss(0, 1) for _ in range(16)])
        densities = common * noise * (1 + 0.2 * rank)
        if number % 7 == 0:
            densities[number % 16] = torch.nan if rank else 1.0
        asked = SimpleNamespace(
            full_untruncated_fill_ids=key_tokens(tokens),
            extra_key=None,
            cache_salt=None,
            radiximp_observation=Observation(256, 16, densities),
        )
        harvest(core, tap, [asked])
    evictions = core.num_evictions["device"]
    importance = [core.history_of(node).density for node in core._node_arena.values()]
    with open(f"{digests}{rank}", "w") as file:
        file.write(f"{evictions} {core.victim_digest} {core.num_observations} {importance}")
    dist.destroy_process_group()


def key_tokens(tokens: list[int]):
    from array import array

    return array("q", tokens)


def test_ranks_whose_scores_carry_noise_choose_the_same_victims(tmp_path):
    arguments = (str(tmp_path / "rendezvous"), str(tmp_path / "digest"))
    multiprocessing.spawn(serve, args=arguments, nprocs=NUM_RANKS)
    found = [(tmp_path / f"digest{rank}").read_text() for rank in range(NUM_RANKS)]
    assert found[0] == found[1] == found[2]
    evictions, _, observations, *importance = found[0].split()
    assert int(evictions) > 100 and int(observations) == NUM_REQUESTS
    assert len(set(importance)) > 10
