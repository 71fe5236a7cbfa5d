"""Brings the table's values to prometheus_client, as SGLang's own collectors do: its multiprocess files, its labels, its ranks.

Values are totals kept elsewhere; what is added here is the difference to the last time. Import only in processes in which SGLang has set
PROMETHEUS_MULTIPROC_DIR: prometheus_client reads it when it is imported.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from radiximp.serving.metrics.table import TABLE, Metric
from radiximp.serving.metrics.tally import Buckets

# Between two exports while batches follow each other; an idle scheduler exports at once.
_EVERY_S = 1.0
_COSTLY_EVERY_S = 10.0


class Exporter:
    """One per scheduler process that reports, owned by its thread. export: some microseconds per series."""

    def __init__(self, labels: Mapping[str, Any], registry=None) -> None:
        """labels: those of SGLang's collector. registry: None for the process's own."""
        self._labels = dict(labels)
        self._rows = [(metric, register(metric, tuple(labels), registry)) for metric in TABLE if metric.read]
        self._exported: dict[tuple[str, tuple[str, ...]], Any] = {}
        self._next_s = self._next_costly_s = 0.0
        self.is_stale = True

    def after_batch(self, core) -> None:
        """Export if it is time."""
        self.is_stale = True
        if time.monotonic() >= self._next_s:
            self.export(core)

    def when_idle(self, core) -> None:
        """Export what the last batches changed, once."""
        if self.is_stale:
            self.export(core)

    def export(self, core, is_complete: bool = False) -> None:
        """Bring all up to now; costly ones where it is time or `is_complete`."""
        now_s = time.monotonic()
        with_costly = is_complete or now_s >= self._next_costly_s
        for metric, collector in self._rows:
            if with_costly or not metric.is_costly:
                self._export_one(metric, collector, metric.read(core))
        self.is_stale = False
        self._next_s = now_s + _EVERY_S
        if with_costly:
            self._next_costly_s = now_s + _COSTLY_EVERY_S

    def _export_one(self, metric: Metric, collector, values) -> None:
        for own, value in values.items():
            series = collector.labels(**self._labels, **dict(zip(metric.label_names, own, strict=True)))
            before = self._exported.get((metric.name, own))
            if metric.kind == "gauge":
                series.set(value)
            elif metric.kind == "counter":
                series.inc(value - (before or 0))
                self._exported[metric.name, own] = value
            else:
                self._exported[metric.name, own] = _add_buckets(series, value, before)


def _add_buckets(series, value: Buckets, before: tuple[list[int], float] | None) -> tuple[list[int], float]:
    # prometheus_client counts one observation at a time; a node's tokens are thousands.
    counts, total = before or ([0] * len(value.counts), 0.0)
    for bucket, new, old in zip(series._buckets, value.counts, counts, strict=True):
        bucket.inc(new - old)
    series._sum.inc(value.sum - total)
    return list(value.counts), value.sum


def register(metric: Metric, base_labels: tuple[str, ...], registry=None):
    """The metric in prometheus_client, under SGLang's labels and its own."""
    settings: dict[str, Any] = {} if registry is None else {"registry": registry}
    names = (*base_labels, *metric.label_names)
    if metric.kind == "counter":
        return Counter(metric.name, metric.help, names, **settings)
    if metric.kind == "histogram":
        return Histogram(metric.name, metric.help, names, buckets=metric.edges, **settings)
    return Gauge(metric.name, metric.help, names, multiprocess_mode="mostrecent", **settings)
