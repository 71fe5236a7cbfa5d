"""What the HTTP process decides of warm traffic: how long a piece is, when one may start, which adapters there are."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from radiximp.serving.api import pacing
from radiximp.serving.api.pacing import PIECE_S, Pacing
from radiximp.serving.api.prompts import PromptError, lora_id_of
from radiximp.serving.requests import WARM_RID


def in_flight(page_tokens: int = 1, **requests: float):
    """A tokenizer manager's view: request id -> when its first token came (0.0: not yet)."""
    states = {
        rid: SimpleNamespace(time_stats=SimpleNamespace(first_token_time=first))
        for rid, first in requests.items()
    }
    return SimpleNamespace(server_args=SimpleNamespace(page_size=page_tokens), rid_to_state=states)


@pytest.mark.parametrize("tokens_per_s", [200.0, 4000.0])
def test_a_piece_is_as_long_as_fits_its_time(tokens_per_s):
    pace = Pacing(in_flight())
    for _ in range(20):
        pace.note_piece(pace.piece_tokens, pace.piece_tokens / tokens_per_s)
    assert pace.piece_tokens == pytest.approx(tokens_per_s * PIECE_S, rel=0.05)


def test_a_piece_is_whole_pages_and_has_bounds():
    pace = Pacing(in_flight(page_tokens=48))
    assert pace.piece_tokens % 48 == 0
    for _ in range(40):
        pace.note_piece(pace.piece_tokens, 1e-9)
    assert pace.piece_tokens == pytest.approx(pacing.MAX_PIECE_TOKENS, abs=48)
    for _ in range(40):
        pace.note_piece(pace.piece_tokens, 100.0)
    assert pace.piece_tokens == 48


def test_what_was_found_in_the_cache_says_nothing_of_the_speed():
    pace = Pacing(in_flight())
    before = pace.piece_tokens
    pace.note_piece(1, 0.001)
    assert pace.piece_tokens == before


def test_a_piece_starts_where_no_user_waits():
    assert Pacing(in_flight())._is_quiet()
    assert Pacing(in_flight(**{f"{WARM_RID}1": 0.0}))._is_quiet()
    assert not Pacing(in_flight(user=0.0))._is_quiet()


def test_a_server_that_is_never_idle_gives_a_small_share(monkeypatch):
    now_s = time.monotonic()
    monkeypatch.setattr(pacing.time, "monotonic", lambda: now_s)
    decoding, prefilling = Pacing(in_flight(a=5.0)), Pacing(in_flight(a=5.0, b=0.0))
    assert not decoding._is_quiet(), "first it waits for an idle moment"
    now_s += PIECE_S / pacing.BUSY_SHARE
    assert decoding._is_quiet() and not prefilling._is_quiet()
    decoding.note_piece(64, 0.2)
    now_s += 0.9 * 0.2 / pacing.BUSY_SHARE
    assert not decoding._is_quiet()
    now_s += 0.2 * 0.2 / pacing.BUSY_SHARE
    assert decoding._is_quiet()


def test_an_adapter_is_known_by_name_or_refused_in_one_line():
    loaded = {"french": SimpleNamespace(lora_id="id-1")}
    manager = SimpleNamespace(enable_lora=True, lora_ref_cache=loaded)
    assert lora_id_of(manager, None) is None and lora_id_of(manager, "french") == "id-1"
    with pytest.raises(PromptError, match=r"expected the name of a loaded adapter \(french\), got 'german'"):
        lora_id_of(manager, "german")
    with pytest.raises(PromptError, match="start it with --enable-lora"):
        lora_id_of(SimpleNamespace(enable_lora=False), "french")
