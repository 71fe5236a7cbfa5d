"""What the real server did, replayed: mixed traffic from several threads on two tiers, recorded, every victim equal."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eval.equivalence import ENVIRONMENT, FLAGS, mixed_requests
from radiximp.cli import main
from radiximp.replay.recorded import replay_record
from tests.server.server import launch
from tests.server.test_importance import IMPORTANCE, stats

NUM_REQUESTS = 60
NUM_CLIENTS = 6


@pytest.mark.parametrize("config", [{"half_life_s": 0}, {}], ids=["lru", "default"])
def test_the_replay_of_a_live_server_takes_its_victims(config, tmp_path: Path, capsys):
    path = tmp_path / "ops.jsonl.gz"
    settings = json.dumps({**config, "record_path": str(path)})
    flags = [*FLAGS, *IMPORTANCE, "--radix-eviction-policy-config", settings]
    with launch(flags, env=ENVIRONMENT) as server:
        bodies = mixed_requests(NUM_REQUESTS, seed=11)
        with ThreadPoolExecutor(NUM_CLIENTS) as clients:
            list(clients.map(lambda body: server.generate(body.pop("input_ids"), 6, **body), bodies))
        # Asking for statistics completes the record.
        served = stats(server)
    found = replay_record(path)
    with capsys.disabled():
        print(f"\n{found.verdict()}; {path.stat().st_size / NUM_REQUESTS:,.0f} bytes a request")
    assert found.difference is None, found.verdict()
    assert found.stopped is None
    assert found.victims == served["evictions"]["device"] + served["evictions"]["host"]
    assert served["evictions"]["device"] > 20 and served["evictions"]["host"] > 0
    assert found.hit_pages > 0 and found.inserts >= NUM_REQUESTS
    assert main(["replay", str(path)]) == 0
