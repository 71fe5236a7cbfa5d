"""Replays a server's operation record and holds it to account: the same hits, the same victims, in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radiximp.config import ConfigError, PolicyConfig
from radiximp.replay.record_format import FORMAT, VERSION, KeyReader, RecordError, read_lines
from radiximp.replay.recorded_tree import RecordedTree, UnknownNode


@dataclass
class Replayed:
    """What a replay counted up to its end or its first difference.

    tree: as it was left. difference: None, or one sentence with both sides. stopped: why the server ended the record early, if it did.
    """

    tree: RecordedTree
    operations: int = 0
    lookups: int = 0
    hit_pages: int = 0
    inserts: int = 0
    victims: int = 0
    difference: str | None = None
    stopped: str | None = None

    def verdict(self) -> str:
        """One line for the user."""
        if self.difference:
            return f"DIFFERENT at {self.difference}"
        text = f"{self.victims:,} victims, all equal"
        text += f" ({self.operations:,} operations, {self.lookups:,} lookups and {self.inserts:,} inserts with equal hits)"
        return text + (f"; the record ends early: {self.stopped}" if self.stopped else "")


class _Difference(Exception):
    pass


def replay_record(path: Path) -> Replayed:
    """Replay a record to its end or the first difference; raises RecordError."""
    try:
        lines = read_lines(path)
        tree, keys = _open(next(lines, None))
        found = _Replay(tree, keys).run(lines)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from None
    if found.stopped and not found.lookups + found.inserts + found.victims:
        raise RecordError(f"{path}: nothing to replay: {found.stopped}")
    return found


def _open(header: Any) -> tuple[RecordedTree, KeyReader]:
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise RecordError("not an operation record")
    if header.get("version") != VERSION:
        raise RecordError(f"version {header.get('version')!r} of the format; this replay reads {VERSION}")
    for key, low in (("page_tokens", 1), ("pool_tokens", 0)):
        if type(header.get(key)) is not int or header[key] < low:
            raise RecordError(f"{key}: expected a whole number from {low}, got {header.get(key)!r}")
    try:
        config = PolicyConfig.from_mapping(header["config"])
    except (KeyError, TypeError):
        raise RecordError("config: expected an object in the header") from None
    except ConfigError as error:
        raise RecordError(f"config: {error}") from None
    page_tokens = header["page_tokens"]
    return RecordedTree(config, page_tokens, header["pool_tokens"]), KeyReader(page_tokens)


class _Replay:
    """Applies operations by name; the methods named as an operation take what the record holds of it."""

    def __init__(self, tree: RecordedTree, keys: KeyReader) -> None:
        self.tree = tree
        self._keys = keys
        self.counts = Replayed(tree)
        self._operations: dict[str, Callable[..., None]] = {
            "at": self._set_time,
            "match": self._match,
            "insert": lambda namespace, *key: tree.begin_insert(str(namespace), self._keys.decode(*key)),
            "walk": tree.walk,
            "commit": self._commit,
            "use": lambda *use: tree.use(*use),
            "warm": tree.warm,
            "observe": tree.observe,
            "held": tree.note_held,
            "advance": lambda: tree.policy.advance(tree.now_s),
            "lock": lambda number, change: tree.lock(tree.path_of(number), change),
            "lock_host": tree.lock_host,
            "unlock_host": tree.unlock_host,
            "evict": tree.begin_evict,
            "victim": self._victim,
            "host_victim": self._host_victim,
            "demote": tree.demote,
            "remove": tree.remove,
            "back_up": lambda number: tree.set_on_host(number, True),
            "drop_host": lambda number: tree.set_on_host(number, False),
            "load_back": lambda numbers: tree.load_back([tree.node(number) for number in numbers]),
            "capacity": tree.policy.note_capacity,
            "flush": tree.flush,
            "forget": tree.policy.forget,
            "forget_blocks": self._forget_blocks,
            "stop": lambda reason: setattr(self.counts, "stopped", reason),
        }

    def run(self, lines: Iterator[Any]) -> Replayed:
        """All operations, or those up to the first difference."""
        counts = self.counts
        for number, line in enumerate(lines, 2):
            if type(line) is not list or not line or type(line[0]) is not str:
                raise RecordError(f"line {number}: expected [operation, ...], got {str(line)[:80]}")
            name, *arguments = line
            if name not in self._operations:
                raise RecordError(f"line {number}: unknown operation {name!r}")
            operation = self._operations[name]
            try:
                operation(*arguments)
            except _Difference as difference:
                counts.difference = f"line {number} ({name}): {difference}"
                return counts
            except UnknownNode as node:
                counts.difference = f"line {number} ({name}): the server has {node}, the replay has not"
                return counts
            except (TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
                raise RecordError(
                    f"line {number}: {name} is not written so in this format: {error}"
                ) from error
            counts.operations += 1
        return counts

    def _compare(self, what: str, served: Sequence[Any], replayed: Sequence[Any]) -> None:
        if tuple(served) != tuple(replayed):
            raise _Difference(f"{what}: served {_text(served)}, replayed {_text(replayed)}")

    def _set_time(self, now_s: float) -> None:
        self.tree.now_s = now_s

    def _match(self, namespace: int, block: int, rest: str, *served: int) -> None:
        found = self.tree.look_up(str(namespace), self._keys.decode(block, rest))
        self._compare("pages found (device, both tiers)", served, found)
        self.counts.lookups += 1
        self.counts.hit_pages += found[1]

    def _commit(self, served: int) -> None:
        self._compare("pages known before", [served], [self.tree.commit()])
        self.counts.inserts += 1

    def _victim(self, freed_tokens: int, *served: Any) -> None:
        self._compare("device victim (node, pages)", served, self.tree.next_victim(freed_tokens))
        self.counts.victims += served[0] is not None

    def _host_victim(self, *served: Any) -> None:
        self._compare("host victim (node, pages)", served, self.tree.host_victim())
        self.counts.victims += 1

    def _forget_blocks(self) -> None:
        self._keys.clear()


def _text(values: Sequence[Any]) -> str:
    return ", ".join("none" if value is None else str(value) for value in values)
