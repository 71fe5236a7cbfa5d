"""Trace readers on small files: what they read, what they model, and what they say of a bad line."""

from __future__ import annotations

import dataclasses
import gzip

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radiximp.replay.readers import FORMATS, open_trace, write_trace
from radiximp.replay.readers.text_pages import page_ids
from radiximp.replay.trace import Request, Trace, TraceError

MOONCAKE = [
    {"timestamp": 5000, "input_length": 1000, "output_length": 7, "hash_ids": [0, 1]},
    {"timestamp": 4500, "input_length": 1025, "output_length": 8, "hash_ids": [0, 1, 2]},
    {"timestamp": 6500, "input_length": 0, "output_length": 1, "hash_ids": []},
]
OURS = {"radiximp_trace": 1, "page_tokens": 4, "name": "ours", "notes": []}
ASK = [{"role": "system", "content": "Be brief. " * 20}, {"role": "user", "content": "Hello?"}]
ANSWER = {"role": "assistant", "content": "Hi."}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
RESULT = {"role": "tool", "content": "42"}
END = {"role": "user", "content": "Bye."}


def session(name, tools, system, *requests, **fields):
    header = {"session": name, "tool_tokens": tools, "system_tokens": system, "near_duplicate": False}
    return [{**header, "requests": len(requests), **fields}, *requests]


def call(t, tokens, new, keep=0, **fields):
    return {"t": t, "in": tokens, "out": 5, "model": "m", "keep": keep, "new": new, "stop": "", **fields}


@pytest.fixture
def write(tmp_path):
    """Rows (or bytes) as a file; gzip if its name says so."""

    def _write(content, name="t.jsonl"):
        path = tmp_path / name
        data = content if type(content) is bytes else b"".join(orjson.dumps(row) + b"\n" for row in content)
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return _write


def read(path, *args, **options):
    return list(open_trace(path, *args, **options).requests())


def pages(requests):
    return [request.page_ids.tolist() for request in requests]


def plain(requests):
    """Requests that compare: dataclass equality is ambiguous for arrays."""
    return [{**dataclasses.asdict(r), "page_ids": r.page_ids.tolist()} for r in requests]


# mooncake


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_mooncake(write, name):
    trace = open_trace(write(MOONCAKE, name))
    assert (trace.name, trace.page_tokens) == ("a", 512)
    requests = list(trace.requests())
    assert pages(requests) == [[0, 1], [0, 1, 2], []]
    assert all(request.page_ids.dtype == np.int64 for request in requests)
    # half a second back is moved on; the trace starts at 0
    assert [request.arrival_s for request in requests] == [0.0, 0.0, 1.5]
    assert [request.num_tokens for request in requests] == [1000, 1025, 0]
    assert [request.output_tokens for request in requests] == [7, 8, 1]
    assert plain(trace.requests()) == plain(requests)


# weka

TOOLS, SYSTEM = 64 * 2, 64 * 2


def test_weka_prompts_follow_their_stream(write):
    rows = session(
        "a",
        0,
        0,
        call(0.0, 64 * 3 + 10, [[1, 3]], api_time=1.5, stop="tool_use"),
        call(1.0, 64 * 2, [[9, 2]], agent="sub"),
        call(2.0, 64 * 4, [[5, 2]], keep=2, stop="end_turn"),
        call(3.0, 64 * 3, [[20, 1]], keep=2, agent="sub", stop="max_tokens"),
    )
    first, sub, main, sub_again = read(write(rows), hours=1)
    assert pages([first, sub, main, sub_again]) == [[1, 2, 3], [9, 10], [1, 2, 5, 6], [9, 10, 20]]
    assert (first.num_tokens, first.output_tokens, first.service_s) == (202, 5, 1.5)
    assert [r.finish for r in (first, sub, main, sub_again)] == ["tool_use", "", "end_turn", ""]
    assert [r.session for r in (first, sub, main, sub_again)] == ["a", "a/sub", "a", "a/sub"]
    assert main.service_s is None
    assert main.arrival_s - first.arrival_s == pytest.approx(2.0)


def weka_sharing(write, tools, system):
    """The pages that [1..6] of a session with (128, 128) and one with the given sizes have in common."""
    rows = session("a", TOOLS, SYSTEM, call(0.0, 64 * 6, [[1, 6]]))
    rows += session("b", tools, system, call(0.0, 64 * 6, [[1, 6]]))
    found = {request.session: request.page_ids for request in read(write(rows), hours=1)}
    return (found["a"] == found["b"]).tolist()


def test_weka_sessions_share_tools_and_system_prompt_of_equal_size(write):
    assert weka_sharing(write, TOOLS, SYSTEM) == [True] * 4 + [False] * 2
    assert weka_sharing(write, TOOLS, SYSTEM + 64) == [True] * 2 + [False] * 4
    assert weka_sharing(write, TOOLS + 64, SYSTEM - 64) == [False] * 6
    # a page that tools and system prompt both reach into is not one of the tools alone
    assert weka_sharing(write, TOOLS - 1, SYSTEM + 1) == [False] * 6


def test_weka_shares_only_where_a_prompt_starts_as_the_first_one(write):
    rows = session("b", TOOLS, SYSTEM, call(0.0, 64 * 5, [[1, 5]]))
    rows += session(
        "a",
        TOOLS,
        SYSTEM,
        call(0.0, 64 * 4, [[50, 4]], agent="sub"),
        call(0.0, 64 * 5, [[1, 5]]),
        call(1.0, 64 * 5, [[30, 4]], keep=1),
    )
    found = {}
    for request in read(write(rows), hours=1):
        found.setdefault(request.session, []).append(request.page_ids.tolist())
    first, other = found["a"]
    assert first[:4] == found["b"][0][:4] and first[4] != found["b"][0][4]
    assert other[0] == first[0]  # what a session keeps is kept
    assert other[1:] == [1 << 32 | page for page in range(30, 34)]
    assert found["a/sub"] == [[1 << 32 | page for page in range(50, 54)]]


def many_sessions(count):
    rows = []
    for number in range(count):
        rows += session(f"s{number}", 0, 0, call(0.0, 64, [[1, 1]]), call(1800.0, 128, [[2, 1]], keep=1))
    return rows


def test_weka_times_are_modelled_from_the_seed(write):
    rows = many_sessions(20) + session("copy", 0, 0, call(0.0, 64, [[1, 1]]), near_duplicate=True)
    path = write(rows)
    everything = read(path, seed=1)
    assert plain(everything) == plain(read(path, seed=1))
    assert plain(everything) != plain(read(path, seed=2))
    arrivals = [request.arrival_s for request in everything]
    assert arrivals == sorted(arrivals) and arrivals[-1] <= 4 * 3600
    assert {request.session for request in everything} == {f"s{number}" for number in range(20)}
    # fewer sessions are some of the same ones, at the same times
    starts = {request.session: request.arrival_s for request in reversed(everything)}
    few = read(path, seed=1, sessions=5)
    assert len({request.session for request in few}) == 5
    assert all(request.arrival_s >= starts[request.session] for request in few)
    assert few[0].arrival_s == starts[few[0].session]
    assert len(read(path, seed=1, sessions=99)) == len(everything)


def test_weka_drops_what_comes_after_the_hours(write):
    path = write(many_sessions(20))
    requests = read(path, hours=0.25)
    assert len(requests) == 20 and requests[-1].arrival_s < 900
    notes = open_trace(path, hours=0.25, sessions=3).notes
    assert notes[:3] == (
        "3 of 20 sessions, chosen by seed 0.",
        "Start times of sessions are modelled: uniform over 0.25 h, by seed 0.",
        "Requests later than 0.25 h after the start of the trace are dropped.",
    )
    assert any("equal sizes are taken for equal text" in note for note in notes)


# radiximp

ids = st.integers(0, (1 << 63) - 1)
times = st.floats(0, 1e6, allow_nan=False)


@st.composite
def requests_of(draw, page_tokens):
    num_pages = draw(st.integers(0, 6))
    start = draw(st.integers(0, (1 << 63) - 7))
    consecutive = list(range(start, start + num_pages))
    page_ids_ = draw(st.one_of(st.just(consecutive), st.lists(ids, min_size=num_pages, max_size=num_pages)))
    # the last page partial, full, or left out
    spare = draw(st.integers(0 if num_pages == 0 else 1 - page_tokens, page_tokens - 1))
    return Request(
        arrival_s=draw(times),
        page_ids=np.array(page_ids_, np.int64),
        num_tokens=num_pages * page_tokens + spare,
        output_tokens=draw(st.integers(0, 1 << 40)),
        service_s=draw(st.none() | times),
        finish=draw(st.sampled_from(["", "tool_use", "end_turn"])),
        session=draw(st.sampled_from(["", "a", "b\n"])),
        namespace=draw(st.sampled_from(["", "ü"])),
    )


@given(
    data=st.data(),
    page_tokens=st.integers(1, 600),
    name=st.text(max_size=5),
    ending=st.sampled_from(["", ".gz"]),
)
@settings(max_examples=150)
def test_a_written_trace_reads_back_the_same(tmp_path_factory, data, page_tokens, name, ending):
    requests = data.draw(st.lists(requests_of(page_tokens), min_size=1, max_size=12))
    # half of them continue the prompt before
    for index in range(1, len(requests)):
        if data.draw(st.booleans()):
            joined = np.concatenate([requests[index - 1].page_ids, requests[index].page_ids])
            longer = {"page_ids": joined, "num_tokens": len(joined) * page_tokens}
            requests[index] = dataclasses.replace(requests[index], **longer)
    requests.sort(key=lambda request: request.arrival_s)
    written = Trace(name, page_tokens, ("modelled",), lambda: iter(requests))
    path = tmp_path_factory.mktemp("record") / f"t.jsonl{ending}"
    assert write_trace(written, path) == len(requests)
    found = open_trace(path)
    assert (found.name, found.page_tokens, found.notes) == (name, page_tokens, ("modelled",))
    assert plain(found.requests()) == plain(requests)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_conversation_is_written_as_what_it_adds(tmp_path):
    ask = Request(0.0, np.array([7, 8, 9]), 12, session="a")
    again = Request(1.0, np.array([7, 8, 20, 3]), 15, session="a")
    path = tmp_path / "t.jsonl"
    write_trace(Trace("t", 4, (), lambda: iter([ask, again])), path)
    _, first, second = map(orjson.loads, path.read_bytes().splitlines())
    assert first == {"t": 0.0, "tokens": 12, "new": [[7, 3]], "session": "a"}
    assert second == {"t": 1.0, "tokens": 15, "keep": 2, "new": [20, 3], "session": "a"}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (None, "{path}: no requests"),
        (
            Request(float("nan"), np.array([1]), 4),
            "request 1: expected arrival_s: a finite number from 0, got nan",
        ),
        (Request(-1.0, np.array([1]), 4), "request 1: expected arrival_s: a finite number from 0, got -1.0"),
        (
            Request(0.0, np.array([1]), 4, service_s=float("inf")),
            "request 1: expected service_s: a finite number from 0, got inf",
        ),
        (Request(0.0, np.array([1]), 9), "request 1: expected page_ids: 2 or 3 for num_tokens 9, got 1"),
        (
            Request(0.0, np.array([1]), 4, finish="stop"),
            "request 1: expected finish: tool_use, end_turn or empty, got 'stop'",
        ),
        (Request(0.0, np.array([-1]), 4), "request 1: expected page_ids: ids from 0, got -1"),
    ],
)
def test_a_trace_that_cannot_be_read_back_is_not_written(tmp_path, request_, message):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"before")
    with pytest.raises(TraceError) as caught:
        write_trace(Trace("t", 4, (), lambda: iter([request_] if request_ else [])), path)
    assert str(caught.value) == message.format(path=path)
    assert path.read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 1


# openai-jsonl


@given(head=st.binary(max_size=300), tail=st.binary(max_size=100), page_tokens=st.integers(1, 40))
def test_page_ids_agree_as_far_as_full_pages_do(head, tail, page_tokens):
    short, long = page_ids(head, page_tokens), page_ids(head + tail, page_tokens)
    full = len(head) // (page_tokens * 4)
    assert short[:full].tolist() == long[:full].tolist()
    assert len(short) == -(-len(head) // (page_tokens * 4))
    assert short.dtype == np.int64 and (short >= 0).all()


def test_page_ids_are_the_same_everywhere():
    assert page_ids(b"radiximp", 1).tolist() == [5786946173472065591, 6182400607179661073]


def test_messages_share_the_prefix_of_their_conversation(write):
    tools = [{"type": "function", "function": {"name": "f"}}]
    rows = [
        {"messages": ASK, "tools": tools, "user": "ann", "cache_salt": "tenant"},
        {"messages": [*ASK, ANSWER, END], "tools": tools, "user": "ann"},
        {"messages": ASK},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "parts"}]}], "session_id": 3},
    ]
    first, second, bare, parts = read(write(rows))
    shared = len(first.page_ids) - 1  # the last page is partial
    assert first.page_ids[:shared].tolist() == second.page_ids[:shared].tolist()
    assert bare.page_ids[0] != first.page_ids[0]  # tools come first
    assert (first.session, first.namespace, parts.session) == ("ann", "tenant", "3")
    assert parts.num_tokens == -(-len("<|user|>\nparts\n") // 4)
    assert [r.arrival_s for r in (first, second, bare, parts)] == [0.0, 1.0, 2.0, 3.0]
    assert any("one second apart" in note for note in open_trace(write(rows)).notes)


def test_page_tokens_sets_the_length_of_pages(write):
    path = write([{"prompt": "x" * 101}])
    assert [(r.num_tokens, len(r.page_ids)) for r in read(path)] == [(26, 2)]
    assert [(r.num_tokens, len(r.page_ids)) for r in read(path, page_tokens=1)] == [(26, 26)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (100.5, 103.0),
        (1_760_428_436, 1_760_428_438.5),
        (1_760_428_436_000, 1_760_428_438_500),
        (1_760_428_436_000_000, 1_760_428_438_500_000),
        ("2025-10-14T07:53:56Z", "2025-10-14T09:53:58.5+02:00"),
        ("2025-10-14 07:53:56", "2025-10-14T07:53:58.500Z"),
    ],
)
def test_timestamps_of_any_unit(write, first, second):
    rows = [{"prompt": "late", "timestamp": second}, {"prompt": "early", "timestamp": first}]
    early, late = read(write(rows))
    assert (early.arrival_s, late.arrival_s) == (0.0, 2.5)
    assert early.num_tokens == 2 and late.num_tokens == 1


def test_recorded_sessions_can_be_made_concurrent(write):
    # b ran after a, and the rows are out of order
    rows = [
        {"input": "xxxx" * n, "output": "y" * 9, "session_id": name, "timestamp": t * 1_000_000 + 10**15}
        for name, n, t in [("a", 2, 20), ("b", 1, 500), ("a", 1, 0), ("b", 2, 530)]
    ]
    path = write(rows)
    recorded = read(path)
    assert [(r.session, r.num_tokens, r.arrival_s) for r in recorded] == [
        ("a", 1, 0.0),
        ("a", 2, 20.0),
        ("b", 1, 500.0),
        ("b", 2, 530.0),
    ]
    assert recorded[0].output_tokens == 3
    moved = read(path, hours=0.02)
    assert plain(moved) == plain(read(path, hours=0.02)) and plain(moved) != plain(
        read(path, hours=0.02, seed=1)
    )
    for name, gap in [("a", 20.0), ("b", 30.0)]:
        times_ = [r.arrival_s for r in moved if r.session == name]
        assert 0 <= times_[0] < 72 and (len(times_) == 1 or times_[1] - times_[0] == pytest.approx(gap))
    assert len({r.session for r in read(path, sessions=1)}) == 1


@pytest.mark.parametrize("key", ["traj", "history"])
def test_a_conversation_is_a_request_per_turn_of_the_assistant(write, key):
    path = write([{key: [*ASK, CALL, RESULT, ANSWER, END]}, {key: [ANSWER, END]}])
    trace = open_trace(path, hours=1)
    first, second = trace.requests()
    assert [first.finish, second.finish] == ["tool_use", "end_turn"]
    assert first.page_ids[:-1].tolist() == second.page_ids[: len(first.page_ids) - 1].tolist()
    assert first.num_tokens < second.num_tokens and second.output_tokens == -(
        -len("<|assistant|>\nHi.\n") // 4
    )
    assert first.session == second.session == "0" and second.arrival_s > first.arrival_s
    assert plain(trace.requests()) == plain(read(path, "openai-jsonl", hours=1))
    assert plain(trace.requests()) != plain(read(path, hours=1, seed=1))
    assert any("lognormal, median 17 s" in note for note in trace.notes)


def test_one_array_of_conversations(write):
    path = write(orjson.dumps([{"traj": [*ASK, ANSWER]}] * 3, option=orjson.OPT_INDENT_2), "tau.json.gz")
    trace = open_trace(path)
    assert trace.name == "tau" and [r.session for r in read(path, sessions=2)] != []
    assert sorted(r.session for r in trace.requests()) == ["0", "1", "2"]


def test_questions_are_requests_without_known_answers(write):
    trace = open_trace(write([{"turns": ["What is it? " * 20, "And now?"]}]))
    first, second = trace.requests()
    assert first.page_ids[:-1].tolist() == second.page_ids[: len(first.page_ids) - 1].tolist()
    assert first.output_tokens == 0 and first.finish == ""
    assert trace.notes[-1].startswith("Of MT-bench only the questions are known")


# what is said of a bad file

MOON, WEKA = MOONCAKE[0], session("a", 0, 0, call(0.0, 128, [[1, 2]]))


def weka(**fields):
    return [WEKA[0], {**WEKA[1], **fields}]


BAD = {
    "empty": (b"", "{path}: no requests"),
    "blank": (b"\n \n", "{path}: no requests"),
    "not json": (
        orjson.dumps(MOON) + b"\n{'a': 1}\n",
        "{path}:2: expected JSON, got \"{{'a': 1}}\" (unexpected character",
    ),
    "nan": (
        orjson.dumps(MOON) + b'\n\n{"timestamp": NaN}\n',
        "{path}:3: expected JSON, got '{{\"timestamp\": NaN}}' (unexpected character",
    ),
    "infinite": (
        b'{"timestamp": 1e999, "input_length": 1, "hash_ids": []}',
        "{path}:1: expected ",
    ),
    "not an object": (b"[1]", "{path}:item 1: expected a JSON object, got 1"),
    "array in line": (orjson.dumps(MOON) + b"\n[7]\n", "{path}:2: expected a JSON object, got [7]"),
    "no object in line": (orjson.dumps(MOON) + b"\n7\n", "{path}:2: expected a JSON object, got 7"),
    "not utf-8": (b'{"prompt": "\xff"}', "{path}:1: expected UTF-8, got byte 0xff at column 13"),
    "unknown": (
        [{"b": 1, "a": 2}],
        "{path}:1: expected the first row of one of mooncake, weka, radiximp, openai-jsonl, got a row with a, b",
    ),
    "negative length": (
        [{**MOON, "input_length": -1}],
        "{path}:1: expected input_length: a whole number from 0, got -1",
    ),
    "length not whole": (
        [MOON, {**MOON, "output_length": 1.5}],
        "{path}:2: expected output_length: a whole number from 0, got 1.5",
    ),
    "length true": (
        [{**MOON, "output_length": True}],
        "{path}:1: expected output_length: a whole number from 0, got True",
    ),
    "absent": (
        [MOON, {"timestamp": 5000, "input_length": 3}],
        "{path}:2: expected hash_ids: a list of whole numbers from 0, got None",
    ),
    "time absent": (
        [{"input_length": 3, "hash_ids": [1]}],
        "{path}:1: expected timestamp: a number from 0, got nothing",
    ),
    "hash_ids count": (
        [{**MOON, "input_length": 1025}],
        "{path}:1: expected hash_ids: 3 ids for input_length 1025, got 2",
    ),
    "hash_ids strings": (
        [{**MOON, "hash_ids": ["a", "b"]}],
        "{path}:1: expected hash_ids: a list of whole numbers from 0, got ['a', 'b']",
    ),
    "hash_ids too large": (
        [{**MOON, "hash_ids": [0, 1 << 63]}],
        "{path}:1: expected hash_ids: a list of whole numbers from 0, got [0, 9223372036854775808]",
    ),
    "time goes back": (
        [MOON, {**MOON, "timestamp": 3999}],
        "{path}:2: expected timestamp: at most 1 s before the latest, 5000 ms, got 3999 ms",
    ),
    "weka headers only": (session("a", 0, 0), "{path}: no requests"),
    "weka duplicates only": (
        session("a", 0, 0, call(0.0, 0, []), near_duplicate=True),
        "{path}: no requests",
    ),
    "weka count": (
        [WEKA[0], WEKA[1], WEKA[1]],
        "{path}:1: expected requests: 1 rows after it, got 2",
    ),
    "weka keep": (weka(keep=1), "{path}:2: expected keep: at most the 0 pages of the request before, got 1"),
    "weka pages": (
        weka(new=[[1, 3]]),
        "{path}:2: expected keep and new: 2 pages, as its length says, got 3 pages",
    ),
    "weka run": (
        weka(new=[[1, 0]]),
        "{path}:2: expected new: an id or a [first id, count] pair, ids from 0 to 4294967295, got [1, 0]",
    ),
    "weka id": (
        weka(new=[[4294967295, 2]]),
        "{path}:2: expected new: an id or a [first id, count] pair, ids from 0 to 4294967295, got [4294967295, 2]",
    ),
    "weka new": (weka(new=7), "{path}:2: expected new: a list of ids and [first id, count] pairs, got 7"),
    "weka stop": (weka(stop=None), "{path}:2: expected stop: a string, got None"),
    "weka api_time": (weka(api_time=-1), "{path}:2: expected api_time: a number from 0, got -1"),
    "weka order": (
        session("a", 0, 0, call(2.0, 0, []), call(1.0, 0, [])),
        "{path}:3: expected t: at least 2 s, the request before, got 1 s",
    ),
    "version": (
        [{**OURS, "radiximp_trace": 2}],
        '{path}:1: expected a header with "radiximp_trace": 1, got 2',
    ),
    "header only": ([OURS], "{path}: no requests"),
    "notes": ([{**OURS, "notes": "x"}, {}], "{path}:1: expected notes: a list of strings, got 'x'"),
    "page_tokens": (
        [{**OURS, "page_tokens": 0}, {}],
        "{path}:1: expected page_tokens: a whole number from 1, got 0",
    ),
    "our pages": (
        [OURS, {"t": 0, "tokens": 5, "new": [1, 2, 3]}],
        "{path}:2: expected keep and new: 1 or 2 pages, as its length says, got 3 pages",
    ),
    "huge run": (
        [OURS, {"t": 0, "tokens": 5, "new": [[1, 1 << 60]]}],
        "{path}:2: expected keep and new: 1 or 2 pages, as its length says, got 1152921504606846976 pages",
    ),
    "our order": (
        [OURS, {"t": 1, "tokens": 0, "new": []}, {"t": 0, "tokens": 0, "new": []}],
        "{path}:3: expected t: at least 1 s, the request before, got 0 s",
    ),
    "our finish": (
        [OURS, {"t": 1, "tokens": 0, "new": [], "finish": "stop"}],
        "{path}:2: expected finish: tool_use, end_turn or empty, got 'stop'",
    ),
    "no prompt": (
        [{"prompt": "x"}, {"promt": "x"}],
        "{path}:2: expected one of messages, prompt, input, got a row with promt",
    ),
    "prompt of ids": ([{"prompt": [1, 2]}], "{path}:1: expected prompt: a string, got [1, 2]"),
    "messages": ([{"messages": "x"}], "{path}:1: expected messages: a list, got 'x'"),
    "role": ([{"messages": [{}]}], "{path}:1: expected messages: objects with a role, got {{}}"),
    "content": (
        [{"messages": [{"role": "user", "content": 3}]}],
        "{path}:1: expected content: a string, null or a list of parts, got 3",
    ),
    "time of some": (
        [{"prompt": "x", "timestamp": 1}, {"prompt": "x"}],
        "{path}:2: expected timestamp: on every row or on none, got a row that differs",
    ),
    "date": (
        [{"prompt": "x", "timestamp": "noon"}],
        "{path}:1: expected timestamp: a number or an ISO 8601 date and time, got 'noon'",
    ),
    "traj": (
        [{"traj": 1}],
        "{path}:1: expected traj, history, turns: a list of messages or questions, got 1",
    ),
    "turns": ([{"turns": [1]}], "{path}:1: expected turns: a list of strings, got 1"),
    "nothing answered": ([{"traj": ASK}], "{path}: no requests"),
}


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD.keys())
def test_a_bad_line_is_named(write, content, message, name):
    path = write(content, name)
    with pytest.raises(TraceError) as caught:
        read(path)
    assert str(caught.value).startswith(message.format(path=path))


@pytest.mark.parametrize(
    ("format", "message"), [("weka", "the header of a session"), ("radiximp", "a header with")]
)
def test_a_format_that_the_file_does_not_have(write, format, message):
    path = write([MOON])
    with pytest.raises(TraceError, match=f"t.jsonl:1: expected {message}"):
        read(path, format)


FUZZED = {
    "mooncake": MOONCAKE,
    "weka": [
        {**WEKA[0], "requests": 2},
        WEKA[1],
        call(1.0, 192, [3, [9, 1]], keep=1, agent="", api_time=1.0),
    ],
    "radiximp": [
        OURS,
        {"t": 0, "tokens": 9, "keep": 0, "new": [1, [5, 2]], "out": 1, "session": "a", "finish": ""},
    ],
    "openai": [{"prompt": "x", "timestamp": 1, "session_id": "a", "cache_salt": "b", "output": "c"}],
    "messages": [{"messages": [*ASK, CALL, RESULT], "tools": [], "timestamp": "2025-01-01"}],
    "traj": [{"traj": [*ASK, CALL, RESULT, ANSWER]}],
    "turns": [{"turns": ["x", "y"]}],
}
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


@pytest.mark.parametrize("name", FUZZED)
@given(data=st.data())
@settings(max_examples=60)
def test_whatever_a_row_holds_it_reads_or_is_named(tmp_path_factory, name, data):
    rows = [dict(row) for row in FUZZED[name]]
    row = data.draw(st.sampled_from(rows))
    row[data.draw(st.sampled_from(sorted(row)))] = data.draw(anything)
    path = tmp_path_factory.mktemp("fuzz") / "t.jsonl"
    path.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    try:
        requests = read(path)
    except TraceError as error:
        assert str(error).startswith(f"{path}:")
    else:
        assert all(request.page_ids.dtype == np.int64 for request in requests)


def test_a_truncated_gzip_file_says_so_where_it_ends(write):
    path = write([MOON] * 3, "t.jsonl.gz")
    path.write_bytes(path.read_bytes()[:-9])
    message = "expected a whole gzip file, got one that breaks off or is damaged here"
    with pytest.raises(TraceError, match=rf"t\.jsonl\.gz:\d: {message}"):
        read(path)
    path.write_bytes(path.read_bytes()[:20] + b"\0" * 30)
    with pytest.raises(TraceError, match=rf"t\.jsonl\.gz:1: {message}"):
        read(path)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([MOON], {"page_tokens": 16}, "page_tokens: expected 512 for mooncake, got 16"),
        (WEKA, {"page_tokens": 16}, "page_tokens: expected 64 for weka, got 16"),
        (
            [MOON],
            {"hours": 1},
            "sessions, hours: expected none for mooncake, which records when requests arrive",
        ),
        (
            [MOON],
            {"format": "csv"},
            "format: expected auto, mooncake, weka, radiximp, openai-jsonl, got 'csv'",
        ),
        (WEKA, {"sessions": 0}, "sessions: expected a whole number from 1, got 0"),
        (WEKA, {"hours": 0}, "hours: expected a number above 0, got 0"),
        (WEKA, {"hours": float("nan")}, "hours: expected a number above 0, got nan"),
        (
            [{"prompt": "x"}],
            {"hours": 1},
            "expected a session_id on every row, as sessions or hours are asked for",
        ),
    ],
)
def test_an_option_that_does_not_fit_is_refused(write, rows, options, message):
    with pytest.raises(TraceError) as caught:
        open_trace(write(rows), **options)
    assert message in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent.jsonl"):
        open_trace(tmp_path / "absent.jsonl")


def test_formats_are_listed_by_name():
    assert list(FORMATS) == ["mooncake", "weka", "radiximp", "openai-jsonl"]
    assert all(name == format.name for name, format in FORMATS.items())
