"""Do eviction, load-back, pre-warm, cancelled requests and recomputation ever change an answer? (RQ4)

    python -m eval.lossless [--blocks 20] [--minutes 8] [--json FILE] [--smoke]

Needles are hidden in the pages that the model attends to least, in documents of 1k to 8k tokens, one needle a question and several
a document; besides there are conversations with tools, coding agents and chat. Every prompt is answered without a prefix cache, under
pressure (see `arms.py`) and with everything on the host computed again; tokens and log-probabilities must be equal to the
last bit. A call works on the arm that is furthest behind, a block of 100 prompts at a time, and the next goes on. Exit code 1 on any
difference. 20 blocks take about an hour and a half of two cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from eval.lossless import arms, placing, prompts, verdicts
from eval.lossless.prompts import SMOKE, Mix, Prompt
from eval.replay_tables.runner import progress
from eval.result_file import RESULTS, ResultFile, add_arguments, deadline_s
from radiximp.serving import default_model

PATH = RESULTS / "lossless" / "smollm2.json"
DEVICE_TOKENS, SMOKE_DEVICE_TOKENS = 9216, 1100
NUM_NOISE_BLOCKS = 2
_PLACED_AHEAD = 4


class Blocks:
    """Prompts of each block, made when they are needed; the needles' places are kept in the file."""

    def __init__(self, result: ResultFile, mix: Mix) -> None:
        self._result, self._mix = result, mix
        self._path = default_model.prepare(lambda line: print(line, file=sys.stderr))
        self._model = None
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(self._path)
        self._made: dict[int, list[Prompt]] = {}

    def prompts(self, block: int) -> list[Prompt]:
        """The block's, in order."""
        if block not in self._made:
            places = {int(number): pages for number, pages in self._places(block).items()}
            self._made[block] = prompts.block_prompts(self.tokenizer, block, self._mix, places)
        return self._made[block]

    def _places(self, block: int) -> dict:
        for row in self._result.rows:
            if row["arm"] == "places" and row["block"] == block:
                return row["places"]
        if self._model is None:
            from eval.model_attention import ModelAttention

            self._model = ModelAttention(self._path)
        documents = prompts.documents(block, self._mix)
        places = {str(document.number): placing.place(self._model, document) for document in documents}
        self._result.add({"arm": "places", "block": block, "places": places})
        return places

    def expected(self, block: int) -> dict[tuple[int, int], tuple[str, int | None]]:
        """Kind of each prompt, and the token that a needle's answer should begin with."""
        return {
            (block, i): (p.kind, self.tokenizer.encode(" " + p.expected)[0] if p.expected else None)
            for i, p in enumerate(self.prompts(block))
        }


def done(result: ResultFile, arm: str) -> set[int]:
    """Blocks that the arm has answered."""
    return {row["block"] for row in result.rows if row["arm"] == arm}


def furthest_behind(result: ResultFile, num_blocks: int) -> tuple[str, list[int]] | None:
    """(arm, blocks it lacks), None when all are there; the truth goes first."""
    wanted = {
        arm: min(NUM_NOISE_BLOCKS, num_blocks) if arm == verdicts.NOISE else num_blocks for arm in arms.ARMS
    }
    missing = {arm: sorted(set(range(number)) - done(result, arm)) for arm, number in wanted.items()}
    left = [arm for arm in arms.ARMS if missing[arm]]
    return (arm := max(left, key=lambda arm: len(missing[arm])), missing[arm]) if left else None


def run_arm(
    result: ResultFile, blocks: Blocks, arm: str, numbers: list[int], until_s: float, device_tokens: int
) -> None:
    """Blocks in order on one server, until the time is up."""
    answered = []
    for number in numbers[:_PLACED_AHEAD]:  # not while a server waits
        blocks.prompts(number)
    with arms.serving(arm, device_tokens) as server, progress(f"{arm}, blocks", len(numbers)) as advance:
        for number in numbers:
            if answered and time.monotonic() > until_s:
                break
            started = time.monotonic()
            answers = arms.answer_block(server, arm, number, blocks.prompts(number))
            answered.append(number)
            seconds = round(time.monotonic() - started, 1)
            result.add({"arm": arm, "block": number, "answers": answers, "seconds": seconds})
            advance()
            print(f"{arm}: block {number}, {len(answers)} answers in {seconds:.0f} s", flush=True)
        stats = arms.stats_of(server, arm)
    if stats:
        result.add({"arm": "stats", "of": arm, "block": None, "blocks": answered, **stats})


def concluded(result: ResultFile, blocks: Blocks) -> int:
    """Print and write what is known so far; 1 on a difference or where nothing was under pressure."""
    expected: dict = {}
    for block in done(result, verdicts.TRUTH):
        expected |= blocks.expected(block)
    summary = verdicts.summary_of(result.rows, expected)
    is_equal, line = verdicts.verdict(summary)
    stats = [row for row in result.rows if row["arm"] == "stats"]
    evictions = {tier: sum(row["evictions"][tier] for row in stats) for tier in ("device", "host")}
    summary |= {"evictions": evictions, "sanity_checks": sum(row["sanity_checks"] for row in stats)}
    result.write(summary=summary, verdicts=[line])
    for row in summary["conditions"]:
        print(f"{row['arm']:<10} {row['condition']:<15} {row['answers']:>5} answers, {row['different']} different; cached: "
              f"{row['device tokens']:,} tokens on the device, {row['host tokens']:,} on the host")  # fmt: skip
    print(f"needles found without a cache: {summary['needles']}; evictions {evictions}")
    print(line)
    has_pressure = not stats or min(evictions.values()) > 0
    if not has_pressure:
        print("error: no eviction, so this shows nothing", file=sys.stderr)
    return 0 if is_equal and has_pressure else 1


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m eval.lossless", description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=20, help="of 100 prompts each")
    add_arguments(parser, PATH)
    args = parser.parse_args(argv)
    until_s = deadline_s(args)
    mix = SMOKE if args.smoke else Mix()
    settings = {
        "mix": dataclasses.asdict(mix),
        "device_tokens": DEVICE_TOKENS,
        "output_tokens": arms.NUM_OUTPUT_TOKENS,
        "clients": arms.NUM_CLIENTS,
    }
    result = ResultFile(None if args.smoke else args.json, "python -m eval.lossless", settings)
    blocks = Blocks(result, mix)
    if args.smoke:
        blocks.prompts(0)
        with ThreadPoolExecutor(2) as pool:
            asked = [
                pool.submit(run_arm, result, blocks, arm, [0], until_s, SMOKE_DEVICE_TOKENS)
                for arm in ("off", "pressure")
            ]
            for one in asked:
                one.result()
        return concluded(result, blocks)
    while (behind := furthest_behind(result, args.blocks)) and time.monotonic() < until_s:
        run_arm(result, blocks, *behind, until_s, DEVICE_TOKENS)
    return concluded(result, blocks)


if __name__ == "__main__":
    sys.exit(main())
