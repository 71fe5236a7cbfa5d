"""The page docs/metrics.md, made from the table; a test compares them."""

from __future__ import annotations

from radiximp.serving.metrics.table import TABLE, Metric

_HEAD = """# Metrics

<!-- Made by `python -m radiximp.serving.metrics > docs/metrics.md`; do not edit. -->

With `--enable-metrics` they stand beside SGLang's own under `GET /metrics`, only while `--radix-eviction-policy importance` is on.
Each has the labels of SGLang's scheduler metrics (`model_name`, `engine_type`, `tp_rank`, `pp_rank`, `moe_ep_rank`, `dp_rank` where there is data
parallelism, `--extra-metric-labels`) and its own below; what the HTTP process counts has those of SGLang's tokenizer metrics. One rank reports for its group unless
`--enable-metrics-for-all-schedulers` is given: then sum over one `tp_rank` only. Counts are kept in the scheduler and
exported once a second under load, at once when it falls idle, and when `/radiximp/stats` is asked for. The number of series is fixed by this table.

| name | kind | unit | labels | what it says | counted by |
|---|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    return _HEAD + "".join(map(_row, TABLE))


def _row(metric: Metric) -> str:
    labels = "; ".join(
        f"`{name}`" + (": " + ", ".join(values) if values else "") for name, values in metric.labels
    )
    kind = metric.kind
    if metric.edges:
        kind += " (to " + ", ".join(f"{edge:g}" for edge in metric.edges) + ")"
    return f"| `{metric.name}` | {kind} | {metric.unit} | {labels} | {metric.help} | {metric.source} |\n"
