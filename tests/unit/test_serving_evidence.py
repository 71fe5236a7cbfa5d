"""What was evicted and wanted again, ratios of medians, and which policy is judged against which."""

from __future__ import annotations

import pytest

from eval.serving import verdicts
from eval.serving.__main__ import POLICIES, flags_of
from eval.serving.traffic import Seen, Session, working_set_tokens


def row(policy: str, ttft_s: float, seed: int = 0, pool: str = "half") -> dict:
    requests = [
        [session, turn, ttft_s * (1 + 0.1 * turn), 0.1, 100, 50, 10, 20]
        for session in range(6)
        for turn in range(3)
    ]
    return {"policy": policy, "pool": pool, "seed": seed, "seconds": 9.0, "requests": requests}


def test_what_was_computed_before_and_is_not_found_was_evicted():
    seen = Seen()
    prompt = list(range(100))
    assert seen.known_tokens(prompt, None) == 0
    seen.add(prompt, None)
    assert seen.known_tokens([*range(50), *range(50)], None) == 48
    assert seen.known_tokens(prompt, None) == 96
    assert seen.known_tokens(prompt, "tenant") == 0


def test_tenants_share_nothing_in_the_working_set():
    prompts = (list(range(64)), list(range(96)))
    of = lambda salt: Session(0, "agent", prompts, (0.0, 0.0), salt)  # noqa: E731
    assert working_set_tokens([of(None), of(None)]) == 96
    assert working_set_tokens([of(None), of("a")]) == 192


def test_ratios_and_the_target():
    rows = [row(name, 2.0, seed) for name in ("lru", "lru again", "slru", "lfu", "tlru") for seed in range(2)]
    rows += [row(name, 1.0, seed) for name in ("importance", *verdicts.CONTROLS) for seed in range(2)]
    summary, (line,) = verdicts.concluded(rows)
    assert summary["ratios"][0]["over"]["lru"][0] == pytest.approx(0.5)
    assert summary["ratios"][0]["noise"][0] == pytest.approx(1.0)
    assert line.endswith(": supported") and "over 2 seeds" in line
    (at_lru,) = [found for found in summary["table"] if found["policy"] == "lru"]
    assert (at_lru["device_rate"], at_lru["host_rate"], at_lru["lost_rate"]) == (0.5, 0.1, 0.2)
    assert at_lru["requests_per_s"] == pytest.approx(2.0)


def test_a_loss_beyond_the_noise_is_said():
    rows = [row(name, 1.0, pool="quarter") for name in ("lru", "lru again", "slru")] + [
        row("importance", 1.5, pool="quarter")
    ]
    _, (line,) = verdicts.concluded(rows)
    assert line.endswith("loses by more than the noise")


def test_flags_name_a_policy_that_the_server_knows():
    for policy in POLICIES:
        flags = flags_of(policy, 4096)
        assert flags[flags.index("--radix-eviction-policy") + 1] in (*verdicts.STOCK, "importance")
