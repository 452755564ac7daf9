"""A server for conversations of clients with tools and forms. Needs no client."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tests.server.fake_engine import FakeEngine, served, words
from tests.server.http_server import Running, running
from tests.server.test_tools_http import HERMES, ONE

from ridgeline.engine.request import EngineRequest

FORM: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"answer": {"type": "integer"}}}},
}


def says_and_calls() -> AbstractContextManager[Running]:
    """A server whose model calls a tool when it is told to "call", and answers in a form where it is bound to one."""

    def says(request: EngineRequest, _: int) -> str:
        last = words().tokenizer.decode(list(request.prompt_ids)).rpartition("user\n")[2]
        return ONE if "call" in last else '{"answer": 42}' if request.grammar is not None else "hello world"

    return running(FakeEngine(says=says, length=4096), served=served(HERMES, length=4096))
