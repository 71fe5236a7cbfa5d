"""SGLang's `kv_hints` envelope, consumed: what a request's sender says of its prefix, besides asking for tokens.

    retain    {"ttl_s": 600, "scope": "prompt" | "conversation", "tokens": N}   a soft pin, prolonged by use
    prefetch  {"input_ids": [...]}        the prompt that will come next is loaded from the host to the device
    demote    {"keep_tokens": N}          its device copy goes before all others, until it is used again

All in version "1"; other actions and versions are somebody else's, or of a later time, and are ignored. A bad payload is
refused where the request enters (`check`), before it runs. Hints take effect once, when the request is over and its
prefix is in the tree (`apply`): on every rank at the same step, in the request's own namespace. An aborted request's do
nothing. They are hints: anybody may send them, so they never displace an operator's pins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field, ValidationError
from sglang.srt.managers.kv_hints import KvHintsEnvelope
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.mem_cache.radix_cache import RadixKey

from radiximp.serving.api.prompts import Form
from radiximp.serving.fetch import tiers

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

    from radiximp.serving.tree.core import ImportanceTreeCore

VERSION = "1"
MAX_ACTIONS = 8
MAX_PREFETCH_TOKENS = 1 << 15
MAX_TTL_S = 86_400.0


class Retain(Form):
    """Keep the prompt, or with the answer the conversation, or its first `tokens`, for `ttl_s` after its last use."""

    ttl_s: float = Field(gt=0, le=MAX_TTL_S, allow_inf_nan=False)
    scope: Literal["prompt", "conversation"] = "prompt"
    tokens: int | None = Field(None, ge=1)


class Prefetch(Form):
    """Have this prompt on the device, if it is on the host."""

    input_ids: list[int] = Field(min_length=1, max_length=MAX_PREFETCH_TOKENS)


class Demote(Form):
    """Let the conversation go first, but for its first `keep_tokens` and what others share."""

    keep_tokens: int = Field(0, ge=0)


_FORMS: dict[str, type[Form]] = {"retain": Retain, "prefetch": Prefetch, "demote": Demote}


def ours(envelope: KvHintsEnvelope | None) -> Iterator[tuple[str, Form]]:
    """(action type, payload) of the actions that are ours. Raises ValueError with one line for a bad payload."""
    actions = [] if envelope is None else envelope.actions
    known = [act for act in actions if act.action_type in _FORMS and act.action_version == VERSION]
    if len(known) > MAX_ACTIONS:
        raise ValueError(
            f"kv_hints: expected at most {MAX_ACTIONS} of {', '.join(_FORMS)} a request, got {len(known)}"
        )
    for action in known:
        try:
            yield action.action_type, _FORMS[action.action_type].model_validate(action.payload)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, ("payload", *first["loc"])))
            raise ValueError(
                f"kv_hints: {action.action_type} {action.action_id[:64]!r}: {where}: {first['msg']}"
            ) from None


def check(tokenizer_manager, obj) -> None:
    """Refuse a request with a bad hint before it runs; raises ValueError, which is a 400."""
    hints = getattr(obj, "kv_hints", None)
    if hints is None:
        return
    vocabulary = tokenizer_manager.model_config.vocab_size
    for envelope in hints if isinstance(hints, list) else [hints]:
        for name, payload in ours(envelope):
            wrong = next(
                (ids for ids in getattr(payload, "input_ids", ()) if not 0 <= ids < vocabulary), None
            )
            if wrong is not None:
                raise ValueError(
                    f"kv_hints: {name}: payload.input_ids: expected tokens from 0 to {vocabulary - 1}, got {wrong}"
                )


class HintBook:
    """Owned by a tree core: what was hinted, and the prefetches that wait for the end of the batch."""

    def __init__(self, core: ImportanceTreeCore) -> None:
        self._core = core
        self._prefetches: list[RadixKey] = []
        self.counts: Counter[str] = Counter()

    def stats(self) -> dict[str, int]:
        """Hints taken, by action; those that found no room; tokens that were pinned, loaded, told to go first."""
        names = (
            "retain",
            "prefetch",
            "demote",
            "no_room",
            "retained_tokens",
            "loaded_tokens",
            "demoted_tokens",
        )
        return {name: self.counts[name] for name in names}

    def apply(self, request: Req, end: int) -> None:
        """Carry out the hints of a request whose first `end` tokens were just inserted; once, when it is over."""
        envelope = getattr(request, "kv_hints", None)
        if envelope is None or not request.finished() or getattr(request, "radiximp_hinted", False):
            return
        request.radiximp_hinted = True
        if isinstance(request.finished_reason, FINISH_ABORT):
            return
        for name, payload in ours(envelope):
            self.counts[name] += 1
            getattr(self, f"_{name}")(request, payload, end)

    def run_prefetches(self) -> None:
        """Load what was asked for; called between two batches, with nothing else in flight from the host."""
        waiting, self._prefetches = self._prefetches, []
        for key in waiting:
            num_tokens = tiers.load(self._core, key, self._core.pin_budget_tokens)
            self.counts["no_room"] += num_tokens is None
            self.counts["loaded_tokens"] += num_tokens or 0

    def clear(self) -> None:
        """The tree is gone."""
        self._prefetches.clear()

    def _retain(self, request: Req, payload: Retain, end: int) -> None:
        if payload.scope == "prompt":
            end = min(end, len(request.origin_input_ids))
        key = self._key(request, request.full_untruncated_fill_ids[: min(end, payload.tokens or end)])
        num_tokens = self._core.pin_book.hint(key, payload.ttl_s)
        self.counts["no_room"] += num_tokens < len(key)
        self.counts["retained_tokens"] += num_tokens

    def _prefetch(self, request: Req, payload: Prefetch, end: int) -> None:
        self._prefetches.append(self._key(request, payload.input_ids))

    def _demote(self, request: Req, payload: Demote, end: int) -> None:
        key = self._key(request, request.full_untruncated_fill_ids[:end])
        self.counts["demoted_tokens"] += self._core.let_go_first(key, payload.keep_tokens)

    def _key(self, request: Req, ids) -> RadixKey:
        return self._core.key_in(request.extra_key, request.cache_salt, ids)
