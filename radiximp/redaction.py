"""Takes secrets out of what leaves a machine: by the names of settings, by the shape of values, and wherever a value is repeated.

Errs on the side of removing: a path that a setting named `..._token` holds goes too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

REMOVED = "[removed]"

# Words of a name that holds a secret, whole words only: `max_total_tokens` and `tokenizer_path` are none.
_SECRET_WORDS = {
    "key", "apikey", "keys", "token", "secret", "secrets", "password", "passwd", "passphrase", "pwd", "credential",
    "credentials", "authorization", "auth", "cookie", "salt",
}  # fmt: skip
# Settings that have such a word and hold none.
_NO_SECRET = {"speculative_token_map", "extra_key_source", "stop_token", "image_token"}
_SHAPES = (
    # user:password@ of a URL, and secrets in its query
    (re.compile(r"(?P<kept>\b[a-z][a-z0-9+.-]*://)[^/\s@\"']+@", re.IGNORECASE), r"\g<kept>" + REMOVED + "@"),
    (
        re.compile(
            r"(?P<kept>[?&;](?:[\w-]*(?:key|token|secret|password|passwd|signature|sig|credential|auth))=)[^&\s\"'#]+",
            re.IGNORECASE,
        ),
        r"\g<kept>" + REMOVED,
    ),
    (re.compile(r"(?P<kept>\bbearer\s+)[^\s\"',]+", re.IGNORECASE), r"\g<kept>" + REMOVED),
    # --api-key VALUE, --api-key=VALUE and API_KEY=VALUE of a command line
    (
        re.compile(
            r"(?P<kept>(?:--)?\b[\w-]*(?:api[_-]?key|secret|password|passwd|(?<!\w)token|[_-]token|access[_-]?key)(?:\s*=\s*|\s+))"
            r"(?:\"[^\"]*\"|'[^']*'|[^\s\"']+)",
            re.IGNORECASE,
        ),
        r"\g<kept>" + REMOVED,
    ),
    # keys that tell by their shape: Hugging Face, OpenAI-like, AWS, GitHub, JSON web tokens
    (re.compile(r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-)[\w-]{8,}"), REMOVED),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), REMOVED),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), REMOVED),
)
# Shorter ones would take pieces of words out.
_MIN_REPEATED = 4


def redacted(value: Any, secrets: Iterable[str] = ()) -> Any:
    """A copy of a JSON value without secrets; secrets: known ones, removed wherever they stand."""
    known = {secret for secret in (*secrets, *secrets_in(value)) if len(secret) >= _MIN_REPEATED}
    return _redacted(value, sorted(known, key=len, reverse=True))


def redacted_text(text: str, secrets: Iterable[str] = ()) -> str:
    """A text without secrets."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _MIN_REPEATED:
            text = text.replace(secret, REMOVED)
    for shape, kept in _SHAPES:
        text = shape.sub(kept, text)
    return text


def is_secret_name(name: str) -> bool:
    """Whether a setting of that name holds a secret."""
    words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)
    return name not in _NO_SECRET and any(word.lower() in _SECRET_WORDS for word in words)


def secrets_in(value: Any) -> Iterator[str]:
    """Of a JSON value: texts under secret names, to be removed elsewhere too (a command line repeats them)."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if is_secret_name(str(name)):
                yield from _texts_in(inner)
            else:
                yield from secrets_in(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from secrets_in(inner)
    elif isinstance(value, str) and (parsed := _as_json(value)) is not None:
        yield from secrets_in(parsed)


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(inner)


def _as_json(text: str) -> Any:
    """The object or array that a setting holds as text; None where it is none."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


def _redacted(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, dict):
        return {
            redacted_text(str(name), secrets): _removed(inner)
            if is_secret_name(str(name))
            else _redacted(inner, secrets)
            for name, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return _redacted_list(value, secrets)
    if isinstance(value, str):
        parsed = _as_json(value)
        return redacted_text(value, secrets) if parsed is None else json.dumps(_redacted(parsed, secrets))
    return value


def _redacted_list(values: Sequence, secrets: list[str]) -> list:
    """As a command line, in which a flag's value is the next word."""
    found, follows_flag = [], False
    for value in values:
        is_text = isinstance(value, str)
        if follows_flag and is_text and not value.startswith("--"):
            found.append(REMOVED)
        else:
            found.append(_redacted(value, secrets))
        is_flag = is_text and value.startswith("--") and "=" not in value
        follows_flag = is_flag and is_secret_name(value[2:].replace("-", "_"))
    return found


def _removed(value: Any) -> Any:
    """Whether it was set is worth knowing; what it was is not."""
    return value if value is None or isinstance(value, (bool, int, float)) or value == "" else REMOVED
