"""The live page's own files, which hold nothing of the server: `GET /radiximp/` and what it loads, read once.

They are open to everybody, because a browser sends no key for a page; the calls that the page makes obey the keys as they do for anybody else.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import radiximp

ROOT = "/radiximp/"
ACCESS = "/radiximp/web/access.json"
_FOLDER = Path(radiximp.__file__).parent / "web"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing from anywhere but this server, and nothing written into the page: a prompt that is shown cannot run.
CONTENT_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)


@dataclass(frozen=True)
class File:
    """One file as it is sent."""

    content: bytes
    headers: dict[str, str]

    @property
    def etag(self) -> str:
        """Changes with the content; a browser that has it is told so."""
        return self.headers["ETag"]


@cache
def files() -> dict[str, File]:
    """Path in the server -> file."""
    found = {path.name: path for path in _FOLDER.iterdir() if path.suffix in _TYPES}
    paths = {ROOT: found.pop("index.html"), **{f"{ROOT}web/{name}": path for name, path in found.items()}}
    return {url: _read(path) for url, path in sorted(paths.items())}


def _read(path: Path) -> File:
    content = path.read_bytes()
    headers = {
        "Content-Type": _TYPES[path.suffix],
        "Content-Security-Policy": CONTENT_POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        # Asked for each time, and sent only when it changed: an upgrade shows at once.
        "Cache-Control": "no-cache",
        "ETag": f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"',
    }
    return File(content, headers)


_open: set[str] = set()


def needed_key(server_args) -> str:
    """Which key our calls need: "admin", "api" or "none"; the page asks for it before it makes one that is refused."""
    return "admin" if server_args.admin_api_key else "api" if server_args.api_key else "none"


def open_files() -> None:
    """The app has the routes of the files and of ACCESS: from now on they need no key, nor does the page without its last slash."""
    _open.update(files(), [ACCESS, ROOT.rstrip("/")])


def is_open(method: str, path: str) -> bool:
    """Whether a call is for one of the files of an app that has them."""
    return method in ("GET", "HEAD") and path in _open
