"""Writes the generated parts of the README: the settings table from the code, the figures from `eval/results/`.

    python -m eval.readme [--check]

`--check` changes nothing and exits 1 if the README is not what the files say.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from eval import report
from eval.bootstrap import shown
from eval.replay_tables import runner, tables
from eval.replay_tables.plan import LRU, OURS
from eval.replay_tables.verdicts import grouped, percent, worst_loss
from eval.replay_tables.workloads import TEXT

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "eval" / "results"


def tree_speed() -> str:
    """Medians of the newest tree measurement."""
    result = json.loads((RESULTS / "tree_speed" / "cpu.json").read_text())
    lines = [
        "Microseconds per call at n leaves, medians (`python -m eval.tree_speed --json eval/results/tree_speed/cpu.json`):",
        "",
        "| | leaves | stock Python core, lru | stock Rust core, lru | importance |",
        "|---|---|---|---|---|",
    ]
    cells = {(row["operation"], row["leaves"], row["variant"]): row for row in result["rows"]}
    for operation, leaves in dict.fromkeys((row["operation"], row["leaves"]) for row in result["rows"]):
        values = [cells[operation, leaves, name]["median_us"] for name in ("python", "rust", "ours")]
        lines.append(
            f"| {operation} | {leaves:,} | " + " | ".join(f"{value:,.0f}" for value in values) + " |"
        )
    return "\n".join(lines)


def equivalence() -> str:
    """What the run against lru found."""
    result = json.loads((RESULTS / "equivalence" / "smollm2.json").read_text())
    lru, ours = result["policies"]
    prompt_tokens = result["prompt_tokens"]
    return (
        f"Answers under constant eviction, device and host (`python -m eval.equivalence --requests {result['requests']} "
        f"--json eval/results/equivalence/smollm2.json`): of {result['requests']:,} mixed requests "
        f"({prompt_tokens:,} prompt tokens) {result['different_answers']} differ from `lru` in a token or "
        f"log-probability, with {ours['stats']['evictions']['device']:,} device and "
        f"{ours['stats']['evictions']['host']:,} host evictions and "
        f"{ours['stats']['sanity_checks']:,} sanity checks of the whole tree on the way. Prompt tokens found cached on "
        f"this traffic: lru {lru['cached_tokens'] / prompt_tokens:.1%}, importance "
        f"{ours['cached_tokens'] / prompt_tokens:.1%} (one run, synthetic traffic: not a benchmark)."
    )


def _read(*path: str) -> dict:
    return json.loads(RESULTS.joinpath(*path).read_text())


def _spread(found: dict) -> str:
    return shown([found[key] for key in ("median", "min", "max")], 3)


def importance_signal() -> str:
    """What observed attention marks, with and without the two normalisations."""
    result = _read("importance_signal", "smollm2.json")
    lines = [
        f"What observed attention marks: mean rank among {result['sentences']} sentences of a system message (higher is more attended; chance is "
        f"{(result['sentences'] + 1) / 2:g}) of one instruction, one placebo as odd in words that asks for nothing, and plain filler; {result['questions']} questions, "
        f"{result['orders']} orders each, 95 % intervals over questions, the last column over pairs of sentences (`python -m eval.importance_signal --json "
        "eval/results/importance_signal/smollm2.json`):",
        "",
        "| observation | context | instruction | placebo | filler | instruction over placebo | over pairs |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        higher, pairs = row["pairs_where_instruction_is_higher"]
        ranks = " | ".join(shown(row[kind]) for kind in ("instruction", "placebo", "filler"))
        lines.append(
            f"| {row['variant']} | {row['context']} | {ranks} | {shown(row['instruction_minus_placebo'])} | "
            f"{shown(row['over_pairs'])}, {higher} of {pairs} pairs |"
        )
    return "\n".join(lines)


def importance_turns() -> str:
    """Whether past turns say what the next one attends to."""
    result = _read("importance_turns", "smollm2.json")
    lines = [
        "Does what a conversation attended to say what its next turn will attend to? Spearman's correlation over messages, agents' conversations "
        f"(tau-bench), {result['dev']} to choose settings and {result['test']} to report, {result['turns']} turns in all; stability is the correlation of the aggregate "
        "with itself one turn before (`python -m eval.importance_turns --json eval/results/importance_turns/smollm2.json`; taps, settings and top shares are in the file):",
        "",
        "| predictor | dev | test | stability (test) |",
        "|---|---|---|---|",
    ]
    stability = {row["name"]: row["test"] for row in result["rows"] if row["kind"] == "stability"}
    for row in result["rows"]:
        if row["kind"] == "predictor" and not row["name"].startswith("top"):
            steady = shown(stability[row["name"]]) if row["name"] in stability else ""
            lines.append(f"| {row['name']} | {shown(row['dev'])} | {shown(row['test'])} | {steady} |")
    tested = {row["name"]: row["test"] for row in result["rows"] if row["kind"] == "predictor"}
    best = max((name for name in tested if name.startswith("EMA")), key=lambda name: tested[name][0])
    is_beyond = tested[best][1] > tested["recency"][2]
    said = "more than" if is_beyond else "no more than"
    lines += ["", f"By these intervals the best average ({best}) says {said} recency does."]
    return "\n".join(lines)


def evidence() -> str:
    """A verdict line per hypothesis, from every result file that there is."""
    lines = [
        "Verdicts (`python -m eval.report`; tables and intervals: [`eval/results/README.md`](eval/results/README.md)):",
        "",
    ]
    for document in report.documents().values():
        lines += [f"- {line}" for line in document["verdicts"]]
    return "\n".join(lines)


def tap_overhead() -> str:
    """What observing costs, against the same server twice."""
    result = _read("tap_overhead", "cpu.json")
    rows = "; ".join(
        f"{row['phase']} {_spread(row['on_over_off'])}, a second server without {_spread(row['off again_over_off'])}"
        for row in result["rows"]
    )
    return (
        f"Time with attention observed over time without, CPU, in turn, {result['rounds']} rounds, prompts of {result['prompt_tokens']:,} tokens "
        f"(`python -m eval.tap_overhead --rounds {result['rounds']} --json eval/results/tap_overhead/cpu.json`): {rows}."
    )


def serving_hits() -> str:
    """Agents' conversations on the real server, a row per device pool and policy."""
    result = json.loads((RESULTS / "serving_hits" / "cpu.json").read_text())
    command = f"--conversations {result['conversations']} --turns {result['turns']}"
    lines = [
        f"Prompt tokens found by tier and time to first token on the real server, CPU, SmolLM2, {result['requests']} requests of agents' "
        f"conversations (tau-bench), device pools of a quarter and half of the {result['working_set_tokens']:,} distinct tokens, host pool of half "
        f"(`python -m eval.serving_hits {command} --json eval/results/serving_hits/cpu.json`; one run, two requests at a time: compare the times with care):",
        "",
        "| device pool | policy | found | device | host | TTFT p50 | p95 |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        rates = " | ".join(f"{row[key]:.1%}" for key in ("hit_rate", "device_hit_rate", "host_hit_rate"))
        times = " | ".join(f"{row[key]:.2f} s" for key in ("ttft_p50_s", "ttft_p95_s"))
        lines.append(f"| {row['pool']} | {row['policy']} | {rates} | {times} |")
    return "\n".join(lines)


def unpressured() -> str:
    """Throughput where everything fits, against the same server twice."""
    result = json.loads((RESULTS / "unpressured" / "cpu.json").read_text())
    floor, ours = result["lru_again_over_lru"], result["importance_over_lru"]
    said = "within" if result["is_within_noise"] else "slower than"
    return (
        "Requests per second where everything fits, over those of stock `lru` on the same Python core, in turn, "
        f"{result['rounds']} rounds (`python -m eval.unpressured --rounds {result['rounds']} --requests {result['requests_per_round']} "
        f"--json eval/results/unpressured/cpu.json`): a second `lru` server {_spread(floor)}, importance {_spread(ours)}: {said} the "
        "noise."
    )


def _ran(document: dict) -> str:
    planned, num_ran = document["cells"], len(document["rows"])
    all_of_them = f"{num_ran:,} cells" if num_ran == planned else f"{num_ran:,} of {planned:,} planned cells"
    stale = f", {document['stale']:,} of them found by earlier code" if document["stale"] else ""
    return f"`python -m eval.replay_tables --part {document['part']}`, {all_of_them}{stale}"


def _text_losses(main: dict) -> list[float]:
    """Points of ours over lru under its worst seed, one a size of a text trace."""
    cells = grouped(main["rows"])
    return [worst_loss(rates) for name in TEXT if name in cells for rates in cells[name].values()]


def headline(main: dict) -> str:
    """Per public trace of requests the size that gains most and the one that gains least, and what the text traces say."""
    cells = grouped(main["rows"])
    lines = []
    for name in (name for name in cells if name not in TEXT):
        rates = {size: of_size for (size, *_), of_size in cells[name].items()}
        gain = {size: percent(of_size[OURS]) - percent(of_size[LRU]) for size, of_size in rates.items()}
        most, least = max(gain, key=gain.get), min(gain, key=gain.get)
        lines.append(
            f"| {tables.title(name)} | {percent(rates[most][LRU])} → **{percent(rates[most][OURS])}** at {most} | "
            f"{percent(rates[least][LRU])} → {percent(rates[least][OURS])} at {least} |"
        )
    losses = _text_losses(main)
    return "\n".join(
        [
            "Prompt tokens found in the cache, in % of all, `lru` → `importance`, in replays of public traces by cache size ([all of it](#measured)):",
            "",
            "| trace | gains most | gains least |",
            "|---|---|---|",
            *lines,
            "",
            f"On four small traces of text, of {len(losses)} sizes {sum(loss < 0 for loss in losses)} are below `lru`, by at most {-min(losses):.2f} points.",
        ]
    )


def replay(main: dict) -> str:
    """Public traces and traces made to hurt, as the newest replay found them."""
    hurt = runner.read_part("adversarial", RESULTS / "replay")
    losses = _text_losses(main)
    lines = [
        f"Prompt tokens found cached in %, last 80 % of the requests, one tier, nothing pinned ({_ran(main)}); "
        "a MISS is a bar that was set beforehand and not reached, or less than `lru` under any seed:",
        "",
        *tables.headline(main, is_short=True),
        "",
        f"On four small traces of text `importance` is below `lru` in {sum(loss < 0 for loss in losses)} of {len(losses)} sizes; these, every policy at every size, "
        "two tiers with pinned requests, ablations, settings and costs: [`eval/results/replay/`](eval/results/replay/).",
        "",
        f"Traces made to hurt: points of `importance` over `lru` at shares of a 2,000-page working set ({_ran(hurt)}):",
        "",
        *tables.adversarial_summary(hurt),
    ]
    return "\n".join(lines)


def what_if() -> str:
    """The verdicts of the what-if curve as its evaluation printed them."""
    result = json.loads((RESULTS / "what_if" / "public.json").read_text())
    lines = [
        f"The what-if curve against replays of public traces (`{result['command']} --json eval/results/what_if/public.json`):",
        "",
    ]
    return "\n".join(lines + [f"- {verdict}" for verdict in result["verdicts"]])


def fetch_failures() -> str:
    """What became of requests whose fetches fail."""
    result = json.loads((RESULTS / "fetch_failures" / "cpu.json").read_text())
    requests = sum(count for what, count in result.items() if what.startswith("requests, "))
    return (
        f"Copies that raise, a silent storage, files cut short, a full host, in turn (`python -m eval.fetch_failures --requests {requests} --json "
        f"eval/results/fetch_failures/cpu.json`): {requests:,} requests over SGLang's own tree, pools, admission and `file` backend, without a model; "
        f"{result['batches undone']} batches were undone, every slot's content was right, nothing hung or leaked."
    )


def _interval(found: dict) -> str:
    return shown([found[key] for key in ("ratio", "low", "high")], 3)


def prewarm() -> str:
    """Pre-warmed against cold, chats beside a pre-warm, two tenants."""
    ttft, background = _read("prewarm", "ttft.json"), _read("prewarm", "background.json")
    tenants = _read("prewarm", "tenants.json")
    said = lambda result: "PASS" if result["is_met"] else "MISS"  # noqa: E731
    warmed = [row["prompts_warmed"] for row in background["rounds"] if row["is_warming"]]
    other, own = (tenants["compared_with_cold"][arm] for arm in ("other", "own"))
    return "\n".join(
        [
            "Pre-warm on the real server, CPU, SmolLM2; ratios with the 95 % interval of a bootstrap over requests, each within one run:",
            "",
            f"- {said(ttft)}: time to first token of {ttft['prompts']} requests whose system prompt of {ttft['system_prompt_tokens'][1]:,} tokens was pre-warmed, over as many cold: "
            f"p50 {_interval(ttft['p50_warm_over_cold'])}, p95 {_interval(ttft['p95_warm_over_cold'])}, at most {ttft['target']} (`python -m eval.prewarm_ttft`)",
            f"- {said(background)}: time to first token of {background['clients']} chatting clients while {background['prompts']} prompts are pre-warmed, over without: "
            f"p50 {_interval(background['p50_with_over_without'])}, p95 {_interval(background['p95_with_over_without'])}, at most {background['target']}; in {background['round_s']:g} s "
            f"{min(warmed)} to {max(warmed)} of them got warm (`python -m eval.prewarm_background`)",
            f"- {said(tenants)}: prompts that another tenant pre-warmed, over cold ones, mean time to first token: {_interval(other['mean_over_cold'])}, p = {other['p_value']:.2f}, and a pin finds "
            f"{tenants['tokens_that_a_pin_found']['other']} tokens; one's own, as the control: {_interval(own['mean_over_cold'])}, p = {own['p_value']:.4f} (`python -m eval.tenant_timing --prompts {tenants['prompts']} --words {tenants['words']}`)",
        ]
    )


def load_back() -> str:
    """The share found on the device with and without proactive load-back."""
    result = _read("load_back", "smollm2.json")
    seeds = ",".join(str(seed) for seed in sorted({row["seed"] for row in result["rows"]}))
    lines = [
        f"Prompt tokens found on the device at admission, agents whose prompts do not fit it, {result['rows'][0]['requests']} requests a seed "
        f"(`python -m eval.load_back --seeds {seeds} --sessions {result['sessions_per_agent']}`): {result['verdict']}.",
        "",
        "| seed | load_back | device | host | TTFT p50 | p95 |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        lines.append(
            f"| {row['seed']} | {row['arm']} | {row['device_share']:.1%} | {row['host_share']:.1%} | "
            f"{row['ttft_p50_s']:.2f} s | {row['ttft_p95_s']:.2f} s |"
        )
    return "\n".join(lines)


def open_page() -> str:
    """What the live page costs."""
    result = _read("open_page", "cpu.json")
    snapshot, waits = result["snapshot"], sorted(result["interactive_s"])
    spread = {state: _spread(found) for state, found in result["over_closed"].items()}
    said = {name: "PASS" if is_met else "MISS" for name, is_met in result["is_met"].items()}
    return "\n".join(
        [
            f"The live page (`python -m eval.open_page --rounds {result['rounds']} --requests {result['requests_per_round']} --json eval/results/open_page/cpu.json`):",
            "",
            f"- {said['snapshot']}: a snapshot of {snapshot['nodes']:,} nodes takes {1e3 * snapshot['median_s']:.0f} ms of the scheduler, at most 200; "
            f"{said['interactive']}: in a browser it can be used after {waits[0]:.2f} to {waits[-1]:.2f} s, at most 2",
            f"- {said['throughput']}: the server's throughput while its calls are made, over nobody looking: {spread['asked']}, at least 0.99 or within the noise, which is "
            f"{spread['closed again']} here; with the browser on the same {result['processors']} cores: {spread['open']}",
        ]
    )


def fetch_or_recompute() -> str:
    """Time to first token over a throttled host tier, by policy."""
    result = _read("fetch_or_recompute", "cpu.json")
    names = list(result["levels"][0]["policies"])
    lines = [
        "Always fetch, always recompute, and by measured cost, over a host tier throttled at five levels: p50 time to first token (Harrell and Davis's estimate), real servers in turn "
        "(`python -m eval.fetch_or_recompute --json eval/results/fetch_or_recompute/cpu.json`):",
        "",
        "| throttle | " + " | ".join(names) + " | by cost over the better |",
        "|---|" + "---|" * (len(names) + 1),
    ]
    for row, ratio in zip(result["levels"], result["by_cost_over_better"], strict=True):
        times = " | ".join(f"{row['policies'][name]['p50_ttft_s']:.2f} s" for name in names)
        lines.append(
            f"| {1e3 * row['delay_s']:.0f} ms + {1e3 * row['s_per_token']:g} ms/token | {times} | {shown(ratio)} |"
        )
    error = result["restore_median_error"]
    lines += [
        "",
        f"Predicted time of a restore: {result['num_restores']} restores, median error {error:.1%}.",
        "",
    ]
    return "\n".join(
        lines + [f"- {'PASS' if holds else 'MISS'}: {claim}" for claim, holds in result["verdicts"].items()]
    )


def generated(text: str) -> str:
    """`text` with the marked parts written anew."""
    results = "\n\n".join(
        (
            *(tree_speed(), unpressured(), equivalence(), serving_hits()),
            *(prewarm(), load_back(), fetch_or_recompute(), fetch_failures(), what_if(), open_page()),
        )
    )
    importance = "\n\n".join((evidence(), importance_signal(), importance_turns(), tap_overhead()))
    main = runner.read_part("main", RESULTS / "replay")
    parts = {"headline": headline(main), "replay": replay(main), "results": results, "importance": importance}
    for name, body in parts.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        head, _, rest = text.partition(begin)
        text = f"{head}{begin}\n{body}\n{end}{rest.partition(end)[2]}"
    return text


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args(argv)
    readme = ROOT / "README.md"
    before = readme.read_text()
    after = generated(before)
    if args.check and before != after:
        print("README.md is out of date: run python -m eval.readme", file=sys.stderr)
        return 1
    if not args.check:
        readme.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
