"""The OpenAPI document: complete, and what it allows never ends in a 5xx (schemathesis, in the long run)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.fake_engine import FakeEngine
from tests.server.http_server import running

from ridgeline.server.app import ROUTES


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [v for k, v in value.items() if k == "$ref"] + [r for v in value.values() for r in references(v)]
    return [r for v in value for r in references(v)] if isinstance(value, list) else []


def test_every_route_and_body_is_described() -> None:
    with running() as server:
        document = server.get("/openapi.json")[2]
    for method, path, _, body in ROUTES:
        operation = document["paths"][path.replace(":path", "")][method.lower()]
        assert (body is not None) == ("requestBody" in operation)
    schemas = document["components"]["schemas"]
    assert {r.rpartition("/")[2] for r in references(document)} <= set(schemas)
    assert "temperature" in schemas["ChatBody"]["properties"] and document["openapi"].startswith("3")


@pytest.mark.long
def test_schemathesis_finds_no_5xx() -> None:
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, Phase, given, settings

    with running(FakeEngine()) as server:
        schema = schemathesis.openapi.from_url(server.url + "/openapi.json")
        tried = 0
        for result in schema.get_all_operations():
            operation = result.ok()

            @given(case=operation.as_strategy())
            @settings(max_examples=150, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
            def check(case: Any) -> None:
                nonlocal tried
                tried += 1
                reply = case.call()
                assert reply.status_code < 500, (case.as_curl_command(), reply.text)

            check()
        assert tried > 1000 and server.get("/health")[0] == 200 and server.state.pending == 0
