"""What one tree node remembers: its uses, who used it, its importance and its pins."""

from __future__ import annotations

import math

from radiximp.config import PolicyConfig
from radiximp.importance.aggregate import ImportanceAggregate

_SESSION_BITS = 64
# Uses within one stretch of this many seconds are one burst, as far as hotspots go.
SPELL_S = 1.0
# What makes up the uses of a node; the logical time orders the nodes of one use.
_USES = (
    "weight", "last_use_s", "used_s", "last_query", "num_queries", "num_returns", "gap_log2_s", "follows", "use_number",
    "reuse_class", "span", "session_bits",
)  # fmt: skip


class Pin:
    """One operator's wish to keep a prefix; the same object lies on each node of it.

    expires_s: on the injected clock; math.inf = until it is taken off. ttl_s: a use moves the expiry to this long
    after it; None: a use changes nothing. last_use_s: of all that it lies on.
    """

    __slots__ = ("expires_s", "last_use_s", "ttl_s")

    def __init__(self, expires_s: float, ttl_s: float | None = None, last_use_s: float = 0.0) -> None:
        self.expires_s = expires_s
        self.ttl_s = ttl_s
        self.last_use_s = last_use_s

    def note_use(self, now_s: float) -> None:
        """A request used all that it lies on; one that comes after the expiry revives nothing."""
        if now_s < self.expires_s:
            self.last_use_s = now_s
            if self.ttl_s is not None:
                self.expires_s = max(self.expires_s, now_s + self.ttl_s)


class NodeHistory:
    """The annotation of one node. Plain data: the policy gives most of it its meaning.

    weight: decayed number of uses as of `last_use_s` (1.0 for a node never used).
    last_use_s: the injected clock at the last use; last_use_tick: the logical clock, which also
    orders uses within one instant. used_s: the last use, where a pre-warm has moved `last_use_s` since. last_query: the request that was last counted here.
    num_queries: uses since the node's content was first seen, evictions included.
    num_returns: those of them that were no burst. gap_log2_s: average of log2 of the seconds between them, None before two. follows: takes the gap of the node before it at its first use.
    use_number: the request that used the node last, as the guard numbers them (0: none). is_ghost: not in the tree.
    reuse_class, span: where the reuse law files the node, and its idle span there (-1: in use).
    held_tokens: the node's own tokens, where the policy keeps them (not all do).
    goes_first: an operator or a request said that it goes before all others; the next use takes that back.
    num_spells: stretches of SPELL_S seconds in which it was used; spell_start_s: when the newest began.
    branch_bits: which different continuations requests took after it, a sketch like that of sessions.
    """

    __slots__ = (
        "weight",
        "last_use_s",
        "used_s",
        "last_use_tick",
        "last_query",
        "num_queries",
        "num_returns",
        "gap_log2_s",
        "follows",
        "use_number",
        "is_ghost",
        "reuse_class",
        "span",
        "held_tokens",
        "session_bits",
        "num_spells",
        "spell_start_s",
        "branch_bits",
        "importance",
        "pins",
        "goes_first",
    )

    def __init__(self, now_s: float, tick: int) -> None:
        self.weight = 1.0
        self.last_use_s = now_s
        self.used_s: float | None = None
        self.last_use_tick = tick
        self.last_query = 0
        self.num_queries = 0
        self.num_returns = 0
        self.gap_log2_s: float | None = None
        self.follows = False
        self.use_number = 0
        self.is_ghost = False
        self.reuse_class = 0
        self.span = -1
        self.held_tokens = 0.0
        self.session_bits = 0
        self.num_spells = 0
        self.spell_start_s = 0.0
        self.branch_bits = 0
        self.importance: ImportanceAggregate | None = None
        self.pins: tuple[Pin, ...] = ()
        self.goes_first = False

    @property
    def density(self) -> float:
        """Aggregated attention density; 1.0 (an average token) before any observation."""
        return 1.0 if self.importance is None else self.importance.density

    def observe(self, density: float, num_tokens: int, is_top: bool, config: PolicyConfig) -> None:
        """Fold one query's attention into what is known: density >= 0 over the node's `num_tokens` that it saw."""
        if self.importance is None:
            self.importance = ImportanceAggregate()
        self.importance.observe(
            density, num_tokens, is_top, config.importance_half_life_queries, config.window_queries
        )

    def add_session(self, session_hash: int) -> None:
        """Count a session, given as a hash that is the same on every rank."""
        self.session_bits |= 1 << (session_hash % _SESSION_BITS)

    @property
    def num_sessions(self) -> int:
        """Distinct sessions, estimated by linear counting (exact to a few per cent below about 50)."""
        return _num_distinct(self.session_bits)

    def note_spell(self, now_s: float) -> None:
        """A request used the node: a burst counts once, however many came in it."""
        if self.num_spells == 0 or now_s - self.spell_start_s >= SPELL_S:
            self.num_spells += 1
            self.spell_start_s = now_s

    def add_branch(self, content_hash: int) -> None:
        """A request went on after the node with content of that hash, the same on every rank."""
        self.branch_bits |= 1 << (content_hash % _SESSION_BITS)

    @property
    def num_branches(self) -> int:
        """Distinct continuations after the node, those that were evicted included; estimated as sessions are."""
        return _num_distinct(self.branch_bits)

    def split(self, head_tokens: int, total_tokens: int) -> NodeHistory:
        """Cut after `head_tokens` of `total_tokens`: returns the head's history, keeps the tail's.

        Uses, sessions and pins copy (a pin covers whole nodes); importance and held tokens share by tokens; what
        followed the whole followed its tail.
        """
        head = NodeHistory(self.last_use_s, self.last_use_tick)
        head.copy_uses(self)
        head.branch_bits = 0
        head.held_tokens *= head_tokens / total_tokens
        self.held_tokens -= head.held_tokens
        head.pins = self.pins
        head.goes_first = self.goes_first
        if self.importance is not None:
            head.importance = self.importance.split(head_tokens, total_tokens)
        return head

    def follow(self) -> None:
        """Be the newest turn of the conversation that the parent ends: it comes back as that did so far."""
        self.follows = True

    def revive(self, ghost: NodeHistory) -> None:
        """Take over what is remembered of the same content from before it was evicted."""
        self.copy_uses(ghost)
        self.importance = ghost.importance

    def remembers_as(self, other: NodeHistory) -> bool:
        """Whether both were used by the same requests at the same times, and never observed."""
        if self.importance is not None or other.importance is not None:
            return False
        return all(getattr(self, name) == getattr(other, name) for name in _USES)

    def copy_uses(self, other: NodeHistory) -> None:
        """Take over the uses, sessions and last query of `other`."""
        self.weight = other.weight
        self.last_use_s = other.last_use_s
        self.used_s = other.used_s
        self.last_use_tick = other.last_use_tick
        self.last_query = other.last_query
        self.num_queries = other.num_queries
        self.num_returns = other.num_returns
        self.gap_log2_s = other.gap_log2_s
        self.follows = other.follows
        self.use_number = other.use_number
        self.is_ghost = other.is_ghost
        self.reuse_class = other.reuse_class
        self.span = other.span
        self.held_tokens = other.held_tokens
        self.session_bits = other.session_bits
        self.num_spells = other.num_spells
        self.spell_start_s = other.spell_start_s
        self.branch_bits = other.branch_bits


def _num_distinct(bits: int) -> int:
    num_zeros = _SESSION_BITS - bits.bit_count()
    return round(-_SESSION_BITS * math.log(max(num_zeros, 0.5) / _SESSION_BITS))
