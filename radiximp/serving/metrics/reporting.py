"""When metrics are exported: the scheduler's hooks call this; it does nothing without `--enable-metrics` or on ranks that do not report."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radiximp.serving.metrics.export import Exporter

# A process runs one scheduler.
current: Exporter | None = None


def start(result, scheduler, *args, **kwargs) -> None:
    """Register all metrics under the labels of the scheduler's own, each at its first value."""
    global current
    core = getattr(scheduler.tree_cache, "tree_core", None)
    if hasattr(core, "tally") and scheduler.metrics_collector_context.current_scheduler_metrics_enabled:
        from radiximp.serving.metrics.export import Exporter

        current = Exporter(scheduler.metrics_collector.labels)
        current.export(core)


def after_batch(result, scheduler, *args, **kwargs) -> None:
    """A batch's results were processed."""
    if current is not None:
        current.after_batch(scheduler.tree_cache.tree_core)


def when_idle(result, scheduler, *args, **kwargs) -> None:
    """There is nothing to run."""
    if current is not None:
        current.when_idle(scheduler.tree_cache.tree_core)


def bring_up_to_now(core) -> None:
    """Somebody asked: what `/metrics` says next is what the answer said."""
    if current is not None:
        current.export(core, is_complete=True)
