"""How a record codes prompts, and what a record that is none says."""

from __future__ import annotations

import gzip
import random

import numpy as np
import orjson
import pytest

from radiximp.config import PolicyConfig
from radiximp.replay.record_format import (
    FORMAT,
    VERSION,
    KeyReader,
    KeyWriter,
    RecordError,
    is_record,
    page_ids,
    read_lines,
)
from radiximp.replay.recorded import replay_record


@pytest.mark.parametrize("page_tokens", [1, 16])
def test_what_is_coded_is_read_back(page_tokens):
    rng = random.Random(page_tokens)
    writer, reader = KeyWriter(), KeyReader(page_tokens)
    prompts = [np.zeros(0, np.int64)]
    sizes = []
    for _ in range(200):
        base = rng.choice(prompts)
        pages = rng.randrange(200)
        tail = np.array([rng.randrange(1 << 40) for _ in range(pages * page_tokens)], np.int64)
        cut = rng.randrange(len(base) // page_tokens + 1) * page_tokens
        prompts.append(np.concatenate([base[:cut], tail]))
        for _ in range(2):
            ids = page_ids(prompts[-1], page_tokens, salt=7)
            coded = writer.encode(ids)
            assert reader.decode(*coded).tolist() == ids.astype(np.int64).tolist()
        sizes.append(len(coded[1]))
    # The second time only what does not fill a block of 64 pages is written.
    assert max(sizes) < 64 * 8 * 4 / 3 + 4


def test_ids_depend_on_the_salt_and_on_every_token():
    tokens = np.arange(64, dtype=np.int64)
    changed = tokens.copy()
    changed[17] += 1
    for page_tokens in (1, 16):
        ids = page_ids(tokens, page_tokens, salt=1)
        assert len(set(ids.tolist())) == len(ids) == 64 // page_tokens
        assert (page_ids(changed, page_tokens, salt=1) != ids).sum() == 1
        assert (page_ids(tokens, page_tokens, salt=1 << 40) != ids).all()


HEADER = {"format": FORMAT, "version": VERSION, "page_tokens": 1, "pool_tokens": 9, "config": {}}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"format": "other"}], "not an operation record"),
        ([{**HEADER, "version": 9}], "version 9 of the format; this replay reads 1"),
        ([{**HEADER, "config": {"half_life_s": -1}}], "config: half_life_s: -1 is out of range"),
        ([HEADER, ["jump", 3]], "line 2: unknown operation 'jump'"),
        ([HEADER, ["lock"]], "line 2: lock is not written so in this format"),
        ([HEADER, ["stop", "it was tired"]], "nothing to replay: it was tired"),
        ([{**HEADER, "version": None}], "version None of the format; this replay reads 1"),
        ([{**HEADER, "page_tokens": 0}], "page_tokens: expected a whole number from 1, got 0"),
        ([{**HEADER, "pool_tokens": "9"}], "pool_tokens: expected a whole number from 0, got '9'"),
        ([{**HEADER, "config": 5}], "config: expected an object in the header"),
        ([HEADER, 5], "line 2: expected [operation, ...], got 5"),
        ([HEADER, []], "line 2: expected [operation, ...], got []"),
        ([HEADER, ["match", 0, -1, "", 0, 0]], "line 2: match is not written so in this format: block -1"),
        ([HEADER, ["match", 0, 7, "", 0, 0]], "line 2: match is not written so in this format: block 7"),
        ([HEADER, ["insert", 0, 0, ""], ["walk", 10**12]], "line 3: walk is not written so in this format"),
        ([HEADER, ["victim", 0, 1, 1]], "line 2: victim is not written so in this format"),
    ],
)
def test_what_is_no_record_is_one_line(tmp_path, lines, message):
    path = tmp_path / "ops.jsonl"
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    with pytest.raises(RecordError) as error:
        replay_record(path)
    assert str(error.value).startswith(f"{path}: {message}") and "\n" not in str(error.value)


def test_a_record_is_told_from_a_trace(tmp_path):
    record, trace = tmp_path / "ops.jsonl.gz", tmp_path / "trace.jsonl"
    record.write_bytes(gzip.compress(orjson.dumps(HEADER) + b"\n"))
    trace.write_text('{"timestamp": 0}\n')
    assert is_record(record) and not is_record(trace) and not is_record(tmp_path / "none")
    trace.write_text(orjson.dumps({"prompt": f"what are {FORMAT}?"}).decode() + "\n")
    assert not is_record(trace)
    assert PolicyConfig.from_mapping(HEADER["config"]) == PolicyConfig()
    assert replay_record(record).verdict().startswith("0 victims")


def test_a_record_of_several_gzip_members_is_read_to_its_end(tmp_path):
    path = tmp_path / "ops.jsonl.gz"
    lines = [orjson.dumps(line) + b"\n" for line in (HEADER, ["jump", 3])]
    path.write_bytes(b"".join(map(gzip.compress, lines)))
    with pytest.raises(RecordError, match="line 2: unknown operation 'jump'"):
        replay_record(path)
    path.write_bytes(gzip.compress(lines[0]) + b"more")
    with pytest.raises(RecordError, match="not a whole gzip stream"):
        replay_record(path)


def test_a_line_that_is_not_json_is_named(tmp_path):
    path = tmp_path / "ops.jsonl"
    path.write_bytes(orjson.dumps(HEADER) + b"\n{\n")
    with pytest.raises(RecordError, match="line 2 is not JSON"):
        replay_record(path)


@pytest.mark.parametrize("name", ["ops.jsonl", "ops.jsonl.gz"])
def test_what_was_flushed_is_read_though_the_file_was_never_closed(tmp_path, name):
    path = tmp_path / name
    raw = path.open("wb")
    file = gzip.GzipFile(fileobj=raw, mode="wb") if name.endswith(".gz") else raw
    for number in range(1000):
        file.write(orjson.dumps([number]) + b"\n")
    file.flush()
    raw.flush()
    with path.open("ab") as torn:
        torn.write(b"" if name.endswith(".gz") else b"[10")
    assert list(read_lines(path)) == [[number] for number in range(1000)]
    file.close()
    raw.close()
