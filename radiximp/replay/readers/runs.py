"""A prompt's page ids written as what it keeps of the prompt before it, and runs of consecutive ids.

Used by the `weka` and `radiximp` formats: `"keep": 2, "new": [7, [20, 3]]` after [1, 2, 3] is
[1, 2, 7, 20, 21, 22].
"""

from __future__ import annotations

import numpy as np

from radiximp.replay.readers.rows import Row, shown

_END_OF_IDS = 1 << 63
NO_PAGES = np.empty(0, np.int64)


def expanded(row: Row, previous: np.ndarray, num_pages: tuple[int, int], end_of_ids: int = _END_OF_IDS):
    """[n] int64: the first `keep` ids of `previous` [m] int64, then the runs of `new`.

    Raises TraceError unless num_pages[0] <= n <= num_pages[1], or where an id is not in [0, end_of_ids).
    Nothing is allocated before the count is known to be right.
    """
    keep = row.integer("keep", 0)
    if keep > len(previous):
        raise row.error(f"keep: at most the {len(previous)} pages of the request before", keep)
    runs = _runs(row, end_of_ids)
    total = keep + sum(count for _, count in runs)
    low, high = num_pages
    if not low <= total <= high:
        expected = f"{low}" if low == high else f"{low} or {high}"
        raise row.error(f"keep and new: {expected} pages, as its length says", f"{total} pages")
    parts = [np.arange(first, first + count, dtype=np.int64) for first, count in runs]
    return np.concatenate([previous[:keep], *parts])


def _runs(row: Row, end_of_ids: int) -> list[tuple[int, int]]:
    written = row.fields.get("new")
    if type(written) is not list:
        raise row.error("new: a list of ids and [first id, count] pairs", shown(written))
    runs = []
    for run in written:
        first, count = (
            (run, 1) if type(run) is int else run if type(run) is list and len(run) == 2 else (-1, 0)
        )
        if (
            type(first) is not int
            or type(count) is not int
            or count < 1
            or not 0 <= first <= end_of_ids - count
        ):
            raise row.error(
                f"new: an id or a [first id, count] pair, ids from 0 to {end_of_ids - 1}", shown(run)
            )
        runs.append((first, count))
    return runs


def compressed(pages: np.ndarray) -> list[int | list[int]]:
    """The runs of [n] int64 page ids from 0, as `expanded` reads them; an id on its own is written bare."""
    if len(pages) == 0:
        return []
    starts = np.concatenate([[0], np.flatnonzero(np.diff(pages) != 1) + 1, [len(pages)]])
    firsts, counts = pages[starts[:-1]].tolist(), np.diff(starts).tolist()
    return [first if count == 1 else [first, count] for first, count in zip(firsts, counts, strict=True)]
