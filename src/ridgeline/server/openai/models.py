"""/v1/models: what is served, under each of its names."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ridgeline.server.openai.common import json_response, state_of
from ridgeline.server.state import Served


async def models(request: Request) -> Response:
    """Lists the names of the model."""
    served = state_of(request).served
    return json_response({"object": "list", "data": [card(served, name) for name in served.names]})


async def model(request: Request) -> Response:
    """One of them."""
    served = state_of(request).served
    return json_response(card(served, served.require(request.path_params["model"])))


def card(served: Served, name: str) -> dict[str, Any]:
    return {
        "id": name, "object": "model", "created": served.created, "owned_by": "ridgeline", "root": served.name, "parent": None,
        "max_model_len": served.limits.max_model_len, "permission": [],
    }  # fmt: skip
