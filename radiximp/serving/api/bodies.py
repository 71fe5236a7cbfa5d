"""Bounds what the bodies of our calls may take, before anything is parsed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

MAX_BODY_BYTES = 4 << 20
# Of all calls together; parsed, a body takes some ten times as much.
_MAX_BYTES_AT_ONCE = 16 << 20
RETRY_AFTER_S = 5
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

_num_bytes_now = 0


def too_many(message: str) -> JSONResponse:
    """429 with Retry-After (SGLang's handler of HTTPException would drop the header)."""
    error = {"object": "error", "message": message, "code": 429}
    return JSONResponse(error, 429, headers={"Retry-After": str(RETRY_AFTER_S)})


class BoundedRoute(APIRoute):
    """A route whose body is at most MAX_BODY_BYTES (413), UTF-8 without lone surrogates (400), and one of few (429)."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As the base class, behind the checks."""
        handle = super().get_route_handler()

        async def checked(request: Request) -> Response:
            global _num_bytes_now
            num_bytes = _declared_bytes(request)
            if _num_bytes_now + num_bytes > _MAX_BYTES_AT_ONCE:
                return too_many("too many calls with large bodies at once")
            _num_bytes_now += num_bytes
            try:
                await _read(request)
                return await handle(request)
            finally:
                _num_bytes_now -= num_bytes

        return checked


def _declared_bytes(request: Request) -> int:
    declared = request.headers.get("content-length")
    if declared is None:
        return MAX_BODY_BYTES if "transfer-encoding" in request.headers else 0
    if not declared.isdecimal() or int(declared) > MAX_BODY_BYTES:
        raise HTTPException(413, f"body: expected at most {MAX_BODY_BYTES} bytes, got {declared[:20]}")
    return int(declared)


async def _read(request: Request) -> None:
    """Read the body into the request, which keeps it."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"body: expected at most {MAX_BODY_BYTES} bytes")
    request._body = bytes(body)
    if _SURROGATE.search(body) and not _is_unicode(request._body):
        raise HTTPException(400, "body: expected Unicode text, got an unpaired surrogate escape")


def _is_unicode(body: bytes) -> bool:
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    except (ValueError, RecursionError):
        return True  # no JSON at all, which FastAPI says better
    return True
