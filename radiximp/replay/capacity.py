"""Sizes of a cache as a user writes them: tokens, or a share of what the trace would fill."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from radiximp.replay.survey import Survey

_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)(%|[kKmMgGx])?")
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9}


class CapacityError(ValueError):
    """A size that cannot be used; the message says what was expected."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """`amount` tokens, or per cent of the distinct pages (unit "%"), or times the device (unit "x")."""

    text: str
    amount: Decimal
    unit: str

    def pages(self, survey: Survey, trace_name: str, device_pages: int = 0) -> int:
        """Whole pages of a trace, rounded down; raises CapacityError where a size above 0 is less than one."""
        if self.unit == "x":
            num_pages = int(self.amount * device_pages)
        elif self.unit == "%":
            num_pages = int(self.amount * survey.num_distinct_pages / 100)
        else:
            num_pages = int(self.amount) // survey.page_tokens
        if num_pages == 0 and self.amount:
            raise CapacityError(
                f"capacity {self.text}: less than one page of {survey.page_tokens} tokens "
                f"({trace_name} has {survey.num_distinct_pages:,} distinct pages)"
            )
        return num_pages


def parse_capacities(text: str, option: str, *, is_host: bool = False) -> list[Capacity]:
    """The sizes of a comma-separated list, each once; a host may be 0 (none) or a multiple of the device (2x).

    Raises CapacityError, which names `option`.
    """
    found = [_parsed(part.strip(), option, is_host) for part in text.split(",")]
    return list({(capacity.amount, capacity.unit): capacity for capacity in found}.values())


def _parsed(text: str, option: str, is_host: bool) -> Capacity:
    written = _WRITTEN.fullmatch(text)
    unit = (written[2] or "").lower() if written else ""
    if written is None or (unit == "x" and not is_host):
        multiple = " or times the device (2x)" if is_host else ""
        raise CapacityError(
            f"{option}: expected tokens (250k, 2M, 1500000) or a share of the distinct pages (5%){multiple}, "
            f"got {text!r}"
        )
    amount = Decimal(written[1])
    if unit == "%" and amount > 100:
        raise CapacityError(f"{option}: expected at most 100% of the distinct pages, got {text!r}")
    if amount == 0 and not is_host:
        raise CapacityError(f"{option}: expected more than 0, got {text!r}")
    return Capacity(text, amount * _UNITS.get(unit, 1), "" if unit in _UNITS else unit)


def tokens_text(num_tokens: int) -> str:
    """A token count as a table shows it: 1500000 is "1.5M"."""
    for divisor, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if num_tokens >= divisor:
            return (
                f"{num_tokens / divisor:.3g}{unit}"
                if num_tokens < 999.5 * divisor
                else f"{num_tokens // divisor}{unit}"
            )
    return str(num_tokens)
