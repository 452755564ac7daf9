"""The application: routes, error objects, and the gate in front. Made by `build`; knows no socket and no signal."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ridgeline.errors import RidgelineError
from ridgeline.server import metrics, ops, plan_page, tokens
from ridgeline.server.anthropic import messages
from ridgeline.server.body import Body, ClientGone
from ridgeline.server.document import describe
from ridgeline.server.failure import HttpError, error_body, failure
from ridgeline.server.gate import Gate, GateRules
from ridgeline.server.openai import chat, completions, models, responses
from ridgeline.server.page import page
from ridgeline.server.plan_desk import Desk
from ridgeline.server.schemas.chat import ChatBody
from ridgeline.server.schemas.completions import CompletionBody
from ridgeline.server.schemas.messages import CountBody, MessagesBody
from ridgeline.server.schemas.responses import ResponsesBody
from ridgeline.server.schemas.tokens import DetokenizeBody, TokenizeBody
from ridgeline.server.state import State

logger = logging.getLogger("ridgeline.server")


Handler = Callable[[Request], Awaitable[Response]]
ROUTES: tuple[tuple[str, str, Handler, type[Body] | None], ...] = (
    ("GET", "/v1/models", models.models, None),
    ("GET", "/v1/models/{model:path}", models.model, None),
    ("POST", "/v1/chat/completions", chat.chat_completions, ChatBody),
    ("POST", "/v1/completions", completions.completions, CompletionBody),
    ("POST", "/v1/responses", responses.responses, ResponsesBody),
    ("POST", "/v1/messages", messages.messages, MessagesBody),
    ("POST", "/v1/messages/count_tokens", messages.count_tokens, CountBody),
    ("POST", "/tokenize", tokens.tokenize, TokenizeBody),
    ("POST", "/detokenize", tokens.detokenize, DetokenizeBody),
    ("GET", "/tokenizer_info", tokens.tokenizer_info, None),
    ("GET", "/health", ops.health, None),
    ("GET", "/ping", ops.health, None),
    ("POST", "/ping", ops.health, None),
    ("GET", "/version", ops.version, None),
    ("GET", "/metrics", metrics.metrics, None),
    ("GET", "/v1/cache", ops.cache, None),
    ("GET", "/v1/usage", ops.usage, None),
    *plan_page.ROUTES,
)


def build(state: State, rules: GateRules | None = None, plans: Desk | None = None) -> Any:
    """The ASGI application of one server. plans: what the planner page answers from; by default the tables."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.server = state
    app.state.desk = plans or Desk(home=True)
    app.router.redirect_slashes = False
    for method, path, handler, _ in ROUTES:
        app.add_api_route(path, handler, methods=[method], response_model=None)
        if method == "GET":  # what probes and browsers ask first
            app.add_api_route(path, handler, methods=["HEAD"], include_in_schema=False, response_model=None)
    bodies = {path: body for _, path, _, body in ROUTES if body is not None}

    async def openapi(_: Request) -> Response:
        """This document."""
        return JSONResponse(describe(app, bodies, state.features.version))

    app.add_api_route("/openapi.json", openapi, methods=["GET"], include_in_schema=False, response_model=None)
    for path in ("/", "/page.css", "/page.js"):
        app.add_api_route(path, page, methods=["GET"], include_in_schema=False, response_model=None)
    for path in plan_page.FILES:
        app.add_api_route(path, plan_page.plan_file, methods=["GET"], include_in_schema=False, response_model=None)
    for kind in (RidgelineError, ClientGone, HTTPException, Exception):
        app.add_exception_handler(kind, tell)
    return Gate(app, rules or GateRules(), state.meters)


async def tell(request: Request, error: Exception) -> Response:
    """Every error as the protocol's own error object."""
    if isinstance(error, HTTPException):
        error = _of_router(request, error)
    if isinstance(error, ClientGone):
        return Response(status_code=499)
    fault = failure(error)
    if fault.status >= 500 and not isinstance(error, HttpError):
        logger.error("%s %s failed: %s", request.method, request.url.path, error, exc_info=error)
    body = error_body(fault, anthropic=request.url.path.startswith("/v1/messages"), request_id=request.scope.get("request_id"))
    return Response(body, fault.status, dict(fault.headers), "application/json")


def _of_router(request: Request, error: HTTPException) -> HttpError:
    path = request.url.path if len(request.url.path) <= 200 else request.url.path[:200] + "..."
    if error.status_code == 404:
        return HttpError(404, f"there is no {request.method} {path} here{_hint(path)}", code="not_found")
    if error.status_code == 405:
        headers = {k: v for k, v in (error.headers or {}).items() if k.lower() == "allow"}
        return HttpError(405, f"{path} does not take {request.method}", code="method_not_allowed", headers=headers)
    return HttpError(error.status_code, str(error.detail), headers=error.headers)


def _hint(path: str) -> str:
    """The usual slips in a client's base URL: /v1 left out, given twice, or after a slash too many."""
    plain = "/" + path.strip("/").replace("//", "/")
    known = {path for _, path, _, _ in ROUTES}
    near = [p for p in (plain, "/v1" + plain, plain.replace("/v1/v1/", "/v1/"), plain.removeprefix("/v1")) if p in known and p != path]
    return f"; did you mean {near[0]}?" if near else ""
