"""The planner page at /plan: its files, and the three JSON endpoints it asks. Formulas are in `planner`, plots in `bench.plots`."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ridgeline.bench.svg import STYLE
from ridgeline.server.failure import HttpError
from ridgeline.server.page import static
from ridgeline.server.plan_desk import Desk

FILES = {
    "/plan": ("plan.html", "text/html"), "/plan.css": ("plan.css", "text/css"), "/plan.js": ("plan.js", "text/javascript"),
    "/plots.css": ("", "text/css"),
}  # fmt: skip
MOST_WAITING = 8
_DEFAULT_WIDTH = 640.0


async def plan_file(request: Request) -> Response:
    """The page, its script and its styles; the plots' style is the reports' own."""
    name, kind = FILES[request.url.path]
    return static(name or STYLE.encode(), kind)


async def choices(request: Request) -> Response:
    """What may be asked: models, devices, formats, presets."""
    desk = _desk(request)
    return await _answer(desk, desk.choices)


async def sheet(request: Request) -> Response:
    """One plan for the options in the query: numbers with labels, figures, formulas."""
    desk = _desk(request)
    texts, width, providers, per_day = _query(request)
    return await _answer(desk, lambda: desk.sheet(texts, width, providers, per_day))


async def ranking(request: Request) -> Response:
    """All devices by dollars per million tokens, and why others were dropped."""
    desk = _desk(request)
    texts, width, _, _ = _query(request)
    return await _answer(desk, lambda: desk.ranking(texts, width))


ROUTES = (("GET", "/plan/choices", choices, None), ("GET", "/plan/sheet", sheet, None), ("GET", "/plan/ranking", ranking, None))


def _desk(request: Request) -> Desk:
    found: Desk = request.app.state.desk
    return found


def _query(request: Request) -> tuple[dict[str, str], float, str, str]:
    """(options of the question, width in pixels, provider rows, requests a day)."""
    given = dict(request.query_params)
    width = given.pop("width", "")
    pixels = float(width) if width.isascii() and width.isdigit() and len(width) < 6 else _DEFAULT_WIDTH
    return given, pixels, given.pop("providers", ""), given.pop("per_day", "")


async def _answer(desk: Desk, work: Callable[[], dict[str, Any]]) -> Response:
    """Beside the event loop, one at a time. Raises 429 when many wait."""
    if desk.waiting >= MOST_WAITING:
        raise HttpError(429, f"{desk.waiting} plans are waiting; try again in a moment", code="queue_full", headers={"retry-after": "1"})
    desk.waiting += 1
    try:
        found = await asyncio.get_running_loop().run_in_executor(desk.worker, work)
    finally:
        desk.waiting -= 1
    return Response(json.dumps(_finite(found), ensure_ascii=False), 200, {"cache-control": "no-store"}, "application/json")


def _finite(value: Any) -> Any:
    """JSON has no infinity: what is not finite becomes null."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
