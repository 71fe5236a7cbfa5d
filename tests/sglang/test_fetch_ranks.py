"""Three ranks whose copies and batches take different times: they learn the same, choose the same, and undo together."""

from __future__ import annotations

import json
import random

import torch.multiprocessing as multiprocessing

NUM_RANKS = 3
NUM_REQUESTS = 150


def serve(rank: int, rendezvous: str, told: str) -> None:
    """The same requests on every rank; times are a rank's own, and some copies fail on one rank only."""
    import torch.distributed as dist

    from radiximp.cost.calibration import PrefillBatch
    from tests.sglang.admission_rig import AdmissionRig
    from tests.sglang.fetch_faults import FetchFaults

    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=NUM_RANKS)
    rig = AdmissionRig("cost", device_tokens=640, host_ratio=3.0, tp_cache_group=dist.group.WORLD)
    shared, own = random.Random(0), random.Random(1 + rank)
    rig.teach(1e-4, 1e-6, 5000)
    choices = []
    with FetchFaults() as faults:
        for number in range(NUM_REQUESTS):
            faults.breaks_copies = number % 10 == 3 and rank == number // 10 % NUM_RANKS
            first, num_tokens = 10_000 * shared.randrange(9), 16 * shared.randrange(4, 30)
            rig.scheduler.waiting_queue = [rig.request(range(first, first + num_tokens + 1))]
            batch = rig.run_pass() or rig.run_pass()
            rig.finish(batch[0])
            rig.check_idle()
            choices.append((batch[0].prefix_len, batch[0].host_loaded_length))
            # Now and then the compute is so quick that fetching is not worth it.
            seconds = num_tokens / (5e6 if number // 30 % 2 else 500) * (1 + own.random())
            rig.fetch._waiting.append(("prefill", PrefillBatch.of([(num_tokens, 0)]), seconds, 0.0))
            rig.fetch.share()
    costs = rig.fetch.describe()
    with open(f"{told}{rank}", "w") as file:
        json.dump([choices, costs, rig.core.victim_digest], file)
    rig.close()
    dist.destroy_process_group()


def test_ranks_of_different_speed_choose_alike(tmp_path):
    arguments = (str(tmp_path / "rendezvous"), str(tmp_path / "told"))
    multiprocessing.spawn(serve, args=arguments, nprocs=NUM_RANKS)
    first, *others = [json.loads((tmp_path / f"told{rank}").read_text()) for rank in range(NUM_RANKS)]
    for other in others:
        assert other == first
    _, costs, _ = first
    assert costs["requests"]["fetch_all"] > 10
    assert costs["requests"]["recompute_all"] > 10
    assert costs["requests"]["fetch_failed"] > 2
