"""Pre-warm jobs by what became of them: counted in the HTTP process, under the labels of SGLang's tokenizer metrics."""

from __future__ import annotations

from functools import cache

from radiximp.serving.launch import is_ours

STATES = ("submitted", "done", "cancelled", "refused")


@cache
def _counters():
    """A series per state, at 0 from the start; None without `--enable-metrics`."""
    from sglang.srt.observability.metrics_collector import tokenizer_metric_labels
    from sglang.srt.runtime_context import get_observability

    if not get_observability().enable_metrics:
        return None
    from radiximp.serving.metrics.export import register
    from radiximp.serving.metrics.table import BY_NAME

    labels = tokenizer_metric_labels()
    counter = register(BY_NAME["radiximp_prewarm_jobs_total"], tuple(labels))
    return {state: counter.labels(**labels, state=state) for state in STATES}


def start(result, tokenizer_manager, *args, **kwargs) -> None:
    """SGLang's own collector was made: register, so that the series are there before the first job."""
    if is_ours(tokenizer_manager.server_args):
        _counters()


def count(state: str) -> None:
    """A job came to this state."""
    counters = _counters()
    if counters is not None:
        counters[state].inc()
