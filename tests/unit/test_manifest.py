"""The hotspots' file as bytes: what it keeps, refuses and merges."""

from __future__ import annotations

import json

import pytest

from radiximp.prewarm import manifest
from radiximp.prewarm.manifest import HALF_LIFE_S, MAX_AGE_S, Entry, ManifestError

MINE = {"model": "m", "tokenizer": "abc", "page_tokens": 16}


def entry(ids: list[int], score: float = 1.0, seen_s: float = 1000.0, **namespace) -> Entry:
    whose = {"extra_key": None, "cache_salt": None, "lora": None, **namespace}
    return Entry(ids, **whose, score=score, queries=60, sessions=9, seen_s=seen_s)


def test_what_is_written_is_read_again():
    entries = [entry([1, 2, 3], cache_salt="a"), entry([4], lora="poet", extra_key="x")]
    assert manifest.load(manifest.dump(entries, MINE), MINE) == entries


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda data: data[:-20], "expected the JSON that radiximp writes"),
        (lambda data: b"[]", "expected radiximp hotspots of version 1"),
        (
            lambda data: data.replace(b'hotspots":1', b'hotspots":2'),
            "expected radiximp hotspots of version 1",
        ),
        (lambda data: data.replace(b"[1,2,3]", b"[1,2,4]"), "the digest does not match: the file is damaged"),
    ],
)
def test_damage_is_refused(change, message):
    with pytest.raises(ManifestError, match=message):
        manifest.load(change(manifest.dump([entry([1, 2, 3])], MINE)), MINE)


@pytest.mark.parametrize("name", list(MINE))
def test_a_wrong_fingerprint_is_refused_by_name(name):
    other = {**MINE, name: "other"}
    with pytest.raises(ManifestError, match=f"made with {name} 'other', this server has "):
        manifest.load(manifest.dump([entry([1])], other), MINE)


def test_two_writers_keep_each_others_entries_and_the_newer_of_the_same():
    ours, theirs = entry([1, 2], score=5, seen_s=2000), entry([1, 2], score=9, seen_s=1500)
    only_theirs, only_ours = entry([7, 8], score=8, seen_s=1500), entry([9], score=6, seen_s=2000)
    assert manifest.merged([ours, only_ours], [theirs, only_theirs], 2000.0) == [only_theirs, only_ours, ours]


def test_a_prompt_that_another_of_its_tenant_begins_with_is_in_that_one():
    short, long = entry([1, 2], score=9), entry([1, 2, 3], score=1)
    other = entry([1, 2], score=5, cache_salt="b")
    assert manifest.merged([short, long, other], [], 1000.0) == [other, long]


def test_what_nobody_calls_a_hotspot_any_more_fades_and_goes():
    old, new = entry([1], score=3, seen_s=0.0), entry([2], score=2, seen_s=HALF_LIFE_S)
    assert manifest.merged([new], [old], HALF_LIFE_S) == [new, old]
    assert manifest.merged([], [old], MAX_AGE_S + 1) == []


def test_the_file_is_bounded_and_keeps_the_most_valuable(monkeypatch):
    monkeypatch.setattr(manifest, "MAX_ENTRIES", 3)
    many = [entry([number, 0], score=number) for number in range(10)]
    assert [found.score for found in manifest.merged(many, [], 1000.0)] == [9, 8, 7]
    monkeypatch.setattr(manifest, "MAX_TOKENS", 4)
    assert [found.score for found in manifest.merged(many, [], 1000.0)] == [9, 8]


def test_namespaces_that_join_to_the_same_text_stay_apart():
    one, other = entry([1], extra_key="a", cache_salt="bc"), entry([1], extra_key="ab", cache_salt="c")
    absent, empty = entry([1], cache_salt=None), entry([1], cache_salt="")
    assert len(manifest.merged([one, other, absent, empty], [], 1000.0)) == 4
    assert "cache_salt" in json.loads(manifest.dump([one], MINE))["content"]["entries"][0]
