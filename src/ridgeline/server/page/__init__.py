"""The pages' static files, read once: chat at /. They ask this server only, which the Content-Security-Policy enforces."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

_KINDS = {"index.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-cache",
}  # fmt: skip


@cache
def _read(name: str) -> bytes:
    return files(__package__).joinpath(name).read_bytes()


async def page(request: Request) -> Response:
    """The page itself at /, its style and script beside it."""
    name = request.url.path.removeprefix("/") or "index.html"
    return static(name, _KINDS[name])


def static(name: str | bytes, kind: str) -> Response:
    """A file of this folder, or bytes as they are, under the policy of the pages."""
    return Response(_read(name) if isinstance(name, str) else name, 200, _HEADERS, kind)
