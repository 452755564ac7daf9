"""The planner page by itself: an application without a model, for `ridgeline plan --page`."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ridgeline.errors import RidgelineError
from ridgeline.server.app import tell
from ridgeline.server.gate import Gate, GateRules
from ridgeline.server.meters import Meters
from ridgeline.server.plan_desk import Desk
from ridgeline.server.plan_page import FILES, ROUTES, plan_file


def plan_app(desk: Desk, rules: GateRules) -> Any:
    """The ASGI application; / leads to the page."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.desk = desk
    for method, path, handler, _ in ROUTES:
        app.add_api_route(path, handler, methods=[method], response_model=None)
    for path in FILES:
        app.add_api_route(path, plan_file, methods=["GET"], response_model=None)
    app.add_api_route("/", _home, methods=["GET"], response_model=None)
    for kind in (RidgelineError, HTTPException, Exception):
        app.add_exception_handler(kind, tell)
    return Gate(app, rules, Meters())


async def _home(_: Request) -> Response:
    return RedirectResponse("/plan")
