"""One command per table of the replay; a run that was cut short goes on where it stopped.

    python -m eval.replay_tables --part main [--jobs 2] [--minutes 10]

Parts: main, adversarial, pinned, ablation, sensitivity, cost. Each writes PART.json and PART.md.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from pathlib import Path

from eval.replay_tables import cost, plan, runner, studies, tables
from eval.replay_tables.workloads import WORKLOADS, folder
from radiximp.replay.trace import TraceError

RESULTS = runner.ROOT / "eval" / "results" / "replay"
PARTS = (*plan.PARTS, "cost")
MARKDOWN = {
    "main": tables.main,
    "adversarial": tables.adversarial,
    "pinned": tables.pinned,
    "ablation": studies.ablation,
    "sensitivity": studies.sensitivity,
    "cost": cost.markdown,
}


def parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m eval.replay_tables", description=__doc__.splitlines()[0])
    parser.add_argument("--part", default=",".join(PARTS), metavar="LIST", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--json-dir", type=Path, help=f"default {RESULTS.relative_to(runner.ROOT)}")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default 1)")
    parser.add_argument("--seeds", type=int, default=plan.NUM_SEEDS, metavar="N", help="of what is modelled")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="start no cell of any part after that long"
    )
    parser.add_argument(
        "--policies", default="", metavar="LIST", help="run no others (default: those of the part)"
    )
    parser.add_argument(
        "--smoke", action="store_true", help="one small generated cell of each kind, into a temporary folder"
    )
    args = parser.parse_args(argv)
    args.parts = args.part.split(",")
    args.policies = [name for name in args.policies.split(",") if name]
    for part in args.parts:
        if part not in PARTS:
            parser.error(f"--part: expected {', '.join(PARTS)}, got {part!r}")
    if args.jobs < 1 or args.seeds < 1:
        parser.error("--jobs, --seeds: expected at least 1")
    return args


def main(argv: list[str] | None = None) -> int:
    """0, or 2 where the traces are not to be found."""
    args = parsed(argv)
    target = args.json_dir or (
        Path(tempfile.gettempdir(), "radiximp-replay-smoke") if args.smoke else RESULTS
    )
    target.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + 60 * args.minutes
    for part in args.parts:
        if part == "cost":
            document = cost.run(target, args.smoke, until_s)
        else:
            tasks = plan.tasks_of(part, args.seeds, args.smoke)
            if not args.smoke and any(WORKLOADS[task.workload].file for task in tasks):
                try:
                    folder()
                except TraceError as error:
                    print(f"error: {error}", file=sys.stderr)
                    return 2
            document = runner.run_part(part, tasks, target, args.jobs, until_s, args.policies)
        text = MARKDOWN[part](document)
        (target / f"{part}.md").write_text(text)
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
