"""For operators: health, version, the cache tree. Knows no model and no protocol."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ridgeline.kv.snapshot import tree_document
from ridgeline.server.failure import HttpError
from ridgeline.server.keys import Key
from ridgeline.server.openai.common import json_response, state_of

MAX_NODES = 10_000


async def health(request: Request) -> Response:
    """200 while requests can be served, 503 when the engine has failed or the server is about to end."""
    state = state_of(request)
    fault = state.engine.fault()
    if fault is not None:
        raise HttpError(503, f"the engine has failed: {fault}", code="engine_failed")
    if state.draining:
        raise HttpError(503, "the server is shutting down", code="shutting_down")
    return json_response({"status": "ok"})


async def version(request: Request) -> Response:
    """The version of the program."""
    return json_response({"version": state_of(request).features.version})


async def cache(request: Request) -> Response:
    """The prefix tree as it is now: nodes with tokens, references, seconds since last use and seconds to live."""
    state = state_of(request)
    if not state.features.show_cache:
        message = "/v1/cache is switched off; start the server with --enable-cache-endpoint"
        raise HttpError(404, message, code="not_enabled")
    asked = request.query_params.get("limit", "200")
    limit = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 8 else 200
    most = max(1, min(limit, MAX_NODES))
    return json_response(await state.engine.call(lambda core: tree_document(core.state.kv, most)))


async def usage(request: Request) -> Response:
    """What the caller's key has used, and what is left of its budget."""
    key: Key | None = request.scope.get("key")
    if key is None:
        raise HttpError(404, "this server has no API keys, so nothing is counted per key", code="not_enabled")
    return json_response(key.document())
