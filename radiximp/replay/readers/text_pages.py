"""Text as page ids without a tokenizer: a token is modelled as 4 bytes of UTF-8.

Messages become one canonical text whose start does not change when messages are added to their end, so a
conversation's prompts share prefixes as they do in a server.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
import orjson

from radiximp.replay.readers.rows import Row, shown

DEFAULT_PAGE_TOKENS = 16
BYTES_PER_TOKEN = 4
NOTE = f"Tokens are modelled as {BYTES_PER_TOKEN} bytes of text each: no tokenizer was run."


def num_tokens_of(text: bytes) -> int:
    """The text's tokens, the last one rounded up."""
    return -(-len(text) // BYTES_PER_TOKEN)


def page_ids(text: bytes, page_tokens: int) -> np.ndarray:
    """[num_pages] int64 from 0: a hash of each page's bytes alone, the last page as full as it is."""
    page_bytes = page_tokens * BYTES_PER_TOKEN
    pages = (text[start : start + page_bytes] for start in range(0, len(text), page_bytes))
    hashes = b"".join(blake2b(page, digest_size=8).digest() for page in pages)
    # the sign bit goes: 63 bits
    return (np.frombuffer(hashes, ">u8") >> np.uint64(1)).astype(np.int64)


def tools_text(tools: Any) -> bytes:
    """Tools as they stand before the first message; nothing if there are none."""
    return b"<|tools|>\n" + _json(tools) + b"\n" if tools else b""


def message_text(row: Row, message: Any) -> bytes:
    """One message: role, content (null is empty; of parts, their text) and tool calls. Raises TraceError."""
    role = message.get("role") if type(message) is dict else None
    if type(role) is not str:
        raise row.error("messages: objects with a role", shown(message))
    calls = message.get("tool_calls")
    content = _content(row, message.get("content"))
    return b"<|%b|>\n%b%b\n" % (role.encode(), content, _json(calls) if calls else b"")


def _content(row: Row, content: Any) -> bytes:
    if content is None:
        return b""
    if type(content) is str:
        return content.encode()
    if type(content) is not list:
        raise row.error("content: a string, null or a list of parts", shown(content))
    texts = (part.get("text") if type(part) is dict else None for part in content)
    return b"".join(
        text.encode() if type(text) is str else _json(part) for text, part in zip(texts, content, strict=True)
    )


def _json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
