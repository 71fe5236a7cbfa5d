"""Which answers differ, what a run may claim, and where needles go."""

from __future__ import annotations

import numpy as np
import pytest

from eval.lossless import arms, prompts, verdicts
from eval.lossless.__main__ import furthest_behind
from eval.lossless.placing import least_important
from eval.result_file import ResultFile, dumped
from radiximp.replay.files import FileError

TRUTH = {
    "arm": "off",
    "block": 0,
    "answers": [[0, "first", 0, 0, [5, 6], [-0.5, -0.25]], [1, "first", 0, 0, [7, 8], [-1.0, -2.0]]],
}
EXPECTED = {(0, 0): ("needle 1000", 5), (0, 1): ("chat", None)}


def summary_of(*rows):
    return verdicts.summary_of([TRUTH, *rows], EXPECTED)


def test_the_last_bit_of_a_log_probability_is_a_difference():
    close = float(np.nextafter(np.float32(-0.25), np.float32(0)))
    answers = [[0, "again", 3, 4, [5, 6], [-0.5, close]], [1, "first", 0, 0, [7, 8], [-1.0, -2.0]]]
    summary = summary_of({"arm": "pressure", "block": 0, "answers": answers})
    assert [(row["condition"], row["different"]) for row in summary["conditions"]] == [
        ("again", 1),
        ("first", 0),
    ]
    is_equal, line = verdicts.verdict(summary)
    assert not is_equal and line.endswith("not supported")
    assert summary["different"][0]["kind"] == "needle 1000"
    assert summary["needles"] == {"needle 1000": [1, 1]}


def test_few_prompts_support_nothing_and_the_servers_own_noise_is_apart():
    noise = {"arm": "off again", "block": 0, "answers": [[0, "first", 0, 0, [5, 9], [-0.5, -0.25]]]}
    same = {"arm": "pressure", "block": 0, "answers": TRUTH["answers"]}
    is_equal, line = verdicts.verdict(
        summary_of(noise, same, {"arm": "stats", "of": "pressure", "block": None})
    )
    assert is_equal and "0 of 2 answers to 2 prompts" in line and "against itself: 1 of 1" in line
    assert line.endswith("fewer than 2,000 prompts")


def test_needles_go_to_the_least_attended_pages_that_are_apart():
    densities = np.array([0.0, 0.5, 0.1, 0.2, 0.9, 0.15, np.nan, 0.3, 0.25])
    assert least_important(densities, 3) == [2, 5, 8]
    with pytest.raises(ValueError, match="pages asked for"):
        least_important(densities, 5)


def test_every_block_has_documents_of_its_own_and_every_fifth_the_longest():
    mix = prompts.Mix()
    blocks = [prompts.documents(block, mix) for block in range(8)]
    assert [max(d.num_tokens for d in block) for block in blocks] == [
        7900,
        2000,
        4000,
        2000,
        4000,
        7900,
        4000,
        2000,
    ]
    numbers = [document.number for block in blocks for document in block]
    assert len(set(numbers)) == len(numbers)
    assert prompts.documents(3, mix) == blocks[3]


def test_every_prompt_is_answered_under_one_condition_and_some_again():
    orders = arms._orders(3, 100)
    once = [i for condition in ("first", "after cancel", "after pre-warm") for i in orders[condition]]
    assert sorted(once) == list(range(100))
    assert len(orders["again"]) == 25 and len(orders["after cancel"]) == 15


def test_the_arm_that_is_furthest_behind_goes_next():
    result = ResultFile(None, "", {})
    assert furthest_behind(result, 3) == ("off", [0, 1, 2])
    for block in range(3):
        result.add({"arm": "off", "block": block})
    assert furthest_behind(result, 3) == ("pressure", [0, 1, 2])
    for arm in arms.ARMS:
        for block in range(3):
            result.add({"arm": arm, "block": block})
    assert furthest_behind(result, 3) is None


def test_a_result_file_goes_on_and_refuses_other_settings(tmp_path):
    path = tmp_path / "slug" / "name.json"
    first = ResultFile(path, "python -m x", {"size": 3, "shares": (0.1, 0.2)})
    first.add({"cell": 1, "values": np.array([1.5, 2.0])})
    again = ResultFile(path, "python -m x", {"size": 3, "shares": (0.1, 0.2)})
    assert again.rows == [{"cell": 1, "values": [1.5, 2.0]}]
    again.write(summary={"mean": 1.75})
    assert path.read_bytes() == dumped(again.document)
    with pytest.raises(FileError, match="other settings"):
        ResultFile(path, "python -m x", {"size": 4})
