"""Clients that bring much with them: litellm and langchain-openai, each a scripted conversation. Installed by the `client-long` extra."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.http_server import Running
from tests.server.says_and_calls import FORM, says_and_calls
from tests.server.test_tools_http import RUN

pytestmark = pytest.mark.long
HELLO: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with says_and_calls() as made:
        yield made


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    return pytest.importorskip("litellm")


def test_litellm(server: Running, litellm: Any) -> None:
    shared = {"model": "openai/tiny", "api_base": server.url + "/v1", "api_key": "none", "messages": HELLO, "num_retries": 0}
    reply = litellm.completion(**shared, n=2, temperature=0, seed=1, logprobs=True, top_logprobs=2)
    assert [c.message.content for c in reply.choices] == ["hello world"] * 2 and reply.usage.completion_tokens == 24
    chunks = list(litellm.completion(**shared, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "hello world"
    assert any(getattr(c, "usage", None) and c.usage.completion_tokens == 12 for c in chunks)
    asked = {**shared, "messages": [{"role": "user", "content": "call it"}]}
    calls = litellm.completion(**asked, tools=[RUN]).choices[0].message.tool_calls
    assert calls[0].function.name == "run"
    joined = litellm.stream_chunk_builder(list(litellm.completion(**asked, tools=[RUN], stream=True)))
    assert joined.choices[0].message.tool_calls[0].function.arguments == calls[0].function.arguments
    assert litellm.completion(**shared, response_format=FORM).choices[0].message.content == '{"answer": 42}'
    plain = {k: v for k, v in shared.items() if k != "messages"} | {"model": "text-completion-openai/tiny"}
    assert litellm.text_completion(**plain, prompt="x").choices[0].text == "hello world"
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**shared, temperature=-1)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**{**shared, "model": "openai/other"})
    long = {**shared, "messages": [{"role": "user", "content": "x" * 9000}]}
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**long)
    reply = litellm.completion(**{**shared, "model": "anthropic/tiny", "api_base": server.url}, max_tokens=50)
    assert reply.choices[0].message.content == "hello world"


def test_langchain(server: Running) -> None:
    chat_models = pytest.importorskip("langchain_openai")
    from langchain_core.messages import HumanMessage, ToolMessage

    model = chat_models.ChatOpenAI(model="tiny", base_url=server.url + "/v1", api_key="none", max_retries=0, temperature=0)
    reply = model.invoke("hi")
    assert reply.content == "hello world" and reply.usage_metadata["output_tokens"] == 12
    assert "".join(c.content for c in model.stream("hi")) == "hello world"
    tools = model.bind_tools([RUN])
    asked = tools.invoke("call it")
    assert asked.tool_calls[0]["name"] == "run"
    whole = None
    for chunk in tools.stream("call it"):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None and whole.tool_calls[0]["args"] == asked.tool_calls[0]["args"]
    history = [HumanMessage("call it"), asked, ToolMessage("done", tool_call_id=asked.tool_calls[0]["id"]), HumanMessage("hi")]
    assert tools.invoke(history).content == "hello world"
    schema = {"title": "X", "type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
    assert model.with_structured_output(schema, method="json_schema").invoke("hi") == {"answer": 42}
    responses = chat_models.ChatOpenAI(model="tiny", base_url=server.url + "/v1", api_key="none", use_responses_api=True, max_retries=0)
    assert responses.invoke("hi").text == "hello world"
    assert "".join(c.text for c in responses.stream("hi")) == "hello world"
    openai = pytest.importorskip("openai")
    with pytest.raises(openai.NotFoundError):
        chat_models.ChatOpenAI(model="other", base_url=server.url + "/v1", api_key="none", max_retries=0).invoke("hi")
