"""Compares answers with those of the server without a cache, and says what follows. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

MIN_PROMPTS = 2000
TRUTH, NOISE = "off", "off again"


def summary_of(
    rows: list[dict[str, Any]], expected: dict[tuple[int, int], tuple[str, str]]
) -> dict[str, Any]:
    """Counts over the blocks that have both the truth and an arm.

    expected: of (block, prompt) its kind and the token text the answer should begin with, as `judge` gives it.
    """
    truths = {row["block"]: {a[0]: a for a in row["answers"]} for row in rows if row["arm"] == TRUTH}
    counts: Counter[tuple[str, str, str]] = Counter()
    prompts, different = set(), []
    for row in rows:
        if row["arm"] == TRUTH or row.get("block") not in truths or "answers" not in row:
            continue
        for answer in row["answers"]:
            number, condition, device, host, tokens, logprobs = answer
            truth = truths[row["block"]][number]
            key = (row["arm"], condition)
            counts[*key, "answers"] += 1
            counts[*key, "device tokens"] += device
            counts[*key, "host tokens"] += host
            if row["arm"] != NOISE:
                prompts.add((row["block"], number))
            if tokens != truth[4] or logprobs != truth[5]:
                counts[*key, "different"] += 1
                different.append({"arm": row["arm"], "condition": condition, "block": row["block"], "prompt": number,
                                  "kind": expected[row["block"], number][0], "answer": answer, "truth": truth})  # fmt: skip
    conditions = [
        {"arm": arm, "condition": condition, **{what: counts[arm, condition, what] for what in ("answers", "different", "device tokens", "host tokens")}}
        for arm, condition in dict.fromkeys(key[:2] for key in counts)
    ]  # fmt: skip
    return {
        "prompts": len(prompts),
        "conditions": conditions,
        "different": different[:20],
        "kinds": dict(Counter(expected[key][0] for key in prompts)),
        "needles": _needles(truths, expected),
    }


def _needles(truths: dict[int, dict[int, list]], expected: dict) -> dict[str, list[int]]:
    """Per kind: (answers of the server without a cache that begin with the needle's word, questions)."""
    found: dict[str, list[int]] = {}
    for block, answers in truths.items():
        for number, answer in answers.items():
            kind, first_token = expected[block, number]
            if first_token is not None:
                right, asked = found.get(kind, [0, 0])
                found[kind] = [right + (answer[4][0] == first_token), asked + 1]
    return found


def verdict(summary: dict[str, Any]) -> tuple[bool, str]:
    """(zero differences, the line)."""
    of = lambda what, arms: sum(row[what] for row in summary["conditions"] if row["arm"] in arms)  # noqa: E731
    arms = {row["arm"] for row in summary["conditions"]} - {NOISE}
    answers, different = of("answers", arms), of("different", arms)
    noise_answers, noise = of("answers", {NOISE}), of("different", {NOISE})
    # With no difference in n prompts, the rate is below 3/n with 95 % confidence.
    if different:
        word = "not supported"
    elif summary["prompts"] < MIN_PROMPTS:
        word = f"no difference so far, fewer than {MIN_PROMPTS:,} prompts"
    else:
        word = "supported"
    bound = (
        f", so the rate is below {300 / summary['prompts']:.2f} % (95 %)" if not different and answers else ""
    )
    line = (
        f"RQ4, eviction is lossless: {different} of {answers:,} answers to {summary['prompts']:,} prompts differ in a token or "
        f"log-probability from a server without a cache{bound}; that server against itself: {noise} of {noise_answers}: {word}"
    )
    return different == 0, line
