"""The OpenAPI document: routes as they are registered, bodies from their schemas. Made when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from ridgeline.server.body import Body

_REF = "#/components/schemas/{model}"


def describe(app: FastAPI, bodies: Mapping[str, type[Body]], version: str) -> dict[str, Any]:
    """bodies: path -> schema of its POST body."""
    document = get_openapi(title="Ridgeline", version=version, routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas["Error"] = {
        "type": "object", "required": ["error"],
        "properties": {"error": {"type": "object", "required": ["message", "type"], "properties": {"message": {"type": "string"}}}},
    }  # fmt: skip
    fault = {
        "description": "What is wrong, in the protocol's error object",
        "content": {"application/json": {"schema": {"$ref": _ref("Error")}}},
    }
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"] = {"200": {"description": "Done"}, "default": fault}
        schema = bodies.get(path)
        if schema is None:
            continue
        made = schema.model_json_schema(ref_template=_REF)
        schemas |= made.pop("$defs", {})
        schemas[schema.__name__] = made
        content = {"application/json": {"schema": {"$ref": _ref(schema.__name__)}}}
        operations["post"]["requestBody"] = {"required": True, "content": content}
    return document


def _ref(name: str) -> str:
    return _REF.format(model=name)
