"""What the ghost table remembers, of whom and for how long."""

from __future__ import annotations

import numpy as np
import pytest

from radiximp.policy.ghosts import GhostTable, in_pieces
from radiximp.policy.history import NodeHistory
from radiximp.policy.prefix_digest import extended, namespace_hasher

PAGE = 4


def put(table: GhostTable, prefix: list[int], tokens: list[int], history: NodeHistory, salt=None) -> None:
    start = extended(namespace_hasher(None, salt), np.array(prefix, dtype=np.int64))
    table.put(extended(start, np.array(tokens[:PAGE])).digest(), np.array(tokens), history)


def take(table: GhostTable, prefix: list[int], tokens: list[int], salt=None):
    start = extended(namespace_hasher(None, salt), np.array(prefix, dtype=np.int64))
    return table.take(start, np.array(tokens), PAGE)


def test_a_returning_prompt_follows_its_ghosts():
    table, first, second = GhostTable(4), NodeHistory(0, 0), NodeHistory(1, 1)
    table.note_held(1, 100)
    prompt = list(range(40))
    put(table, prompt[:8], prompt[8:16], first)
    put(table, prompt[:16], prompt[16:28], second)
    assert take(table, prompt[:8], prompt[8:40]) == [(8, first), (20, second)]
    assert len(table) == 0 and table.num_hits == 1
    assert take(table, prompt[:8], prompt[8:40]) == []


@pytest.mark.parametrize("salt", ["", "t"])
def test_another_namespace_or_prefix_finds_no_ghost(salt):
    table = GhostTable(4)
    table.note_held(1, 100)
    prompt = list(range(16))
    put(table, prompt[:8], prompt[8:], NodeHistory(0, 0))
    assert take(table, prompt[:8], prompt[8:], salt) == []
    assert take(table, [99, *prompt[1:8]], prompt[8:]) == []


def test_the_ghost_table_is_bounded_and_forgets_the_oldest():
    table = GhostTable(2)
    table.note_held(300, 10**6)
    for number in range(2000):
        put(table, [], [number] * PAGE, NodeHistory(number, number))
    assert len(table) == table.capacity == 600
    assert take(table, [], [1399] * PAGE) == []
    assert take(table, [], [1400] * PAGE)[0][1].last_use_s == 1400


def test_a_segment_comes_back_in_part_and_the_rest_stays():
    table, history = GhostTable(4), NodeHistory(3, 3)
    table.note_held(1, 100)
    history.num_queries = 5
    prompt = list(range(40))
    put(table, prompt[:8], prompt[8:32], history)
    [(end, head)] = take(table, prompt[:8], [*prompt[8:18], 99, 98, 97, 96, 95, 94])
    assert (end, head.num_queries, len(table), table.num_tokens) == (8, 5, 1, 16)
    assert take(table, prompt[:16], prompt[16:40]) == [(16, history)]
    assert table.num_tokens == 0


def test_the_ghost_table_is_bounded_in_tokens_too():
    table = GhostTable(1)
    table.note_held(10**6, 100)
    for number in range(50):
        put(table, [], [number] * 40, NodeHistory(number, number))
    assert len(table) == 5 and table.num_tokens == 200


def test_many_neighbours_that_remember_the_same_come_back_as_one_piece():
    def piece(tick: int, num_queries: int) -> NodeHistory:
        history = NodeHistory(7.0, tick)
        history.num_queries, history.held_tokens = num_queries, 4.0
        return history

    found = [(4 * end, piece(end, 2 if end < 9 else 1)) for end in range(1, 11)]
    pieces = list(in_pieces(found, 44))
    assert [(start, end) for start, end, _ in pieces] == [(0, 32), (32, 40), (40, 44)]
    assert [history and (history.num_queries, history.held_tokens) for *_, history in pieces] == [
        (2, 32.0),
        (1, 8.0),
        None,
    ]
    assert len(list(in_pieces([(4, piece(1, 2)), (8, piece(2, 2))], 8))) == 2  # few stay as they were


def test_what_stays_of_a_segment_does_not_keep_the_rest_alive():
    table = GhostTable(4)
    table.note_held(1, 100)
    put(table, [], list(range(40)), NodeHistory(0, 0))
    take(table, [], [*range(20), *range(90, 110)])
    (segment,) = table._segments.values()
    assert segment.token_ids.base is None and len(segment.token_ids) == 20
