"""What a trace is to replay: requests in order of arrival, each prompt a sequence of page ids.

A reader turns one file format into a `Trace`; it streams, so that a trace larger than memory replays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np


class TraceError(ValueError):
    """A line that is not what its format says; the message is `file:line: what was expected`."""


@dataclass(slots=True, frozen=True)
class Request:
    """One request.

    page_ids: [num_pages] int64, what each page of the prompt contains: two prompts share a prefix
    exactly as far as their page ids agree. The last page may be partial, or the tokens after the last full
    page may have none (no other prompt shares them): num_tokens says which.
    arrival_s: seconds from the trace's own start, never decreasing. service_s: seconds from arrival to the last
    token where the trace knows it, else None. finish: "tool_use", "end_turn", or "" where unknown.
    session: which conversation it belongs to; "" where unknown. namespace: tenants never share pages.
    """

    arrival_s: float
    page_ids: np.ndarray
    num_tokens: int
    output_tokens: int = 0
    service_s: float | None = None
    finish: str = ""
    session: str = ""
    namespace: str = ""


@dataclass(frozen=True)
class Trace:
    """A name for tables, the tokens of a page, what was modelled rather than recorded, and the requests.

    requests: starts a fresh pass over the trace at each call.
    """

    name: str
    page_tokens: int
    notes: tuple[str, ...]
    requests: Callable[[], Iterator[Request]]
