"""SmolLM2 behind HTTP, with the official clients: words, forms, calls, and a cached prefix that changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.http_server import Running, running

from ridgeline.engine.async_engine import AsyncEngine
from ridgeline.engine.loader import load
from ridgeline.formats.pull import find_cached
from ridgeline.options import make_options
from ridgeline.server.state import Served

MODEL = find_cached("smollm2")
pytestmark = [pytest.mark.real_model, pytest.mark.skipif(MODEL is None, reason="smollm2 is not in the cache: ridgeline pull smollm2")]
ASK: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    model = load(make_options(str(MODEL), {"max_model_len": 2048, "kv_cache_memory_bytes": 1 << 30}))
    with running(lambda: AsyncEngine(model), served=Served(("smollm2",), model.text, model.limits)) as made:
        yield made


@pytest.fixture
def client(server: Running) -> Any:
    return pytest.importorskip("openai").OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def test_the_stream_says_what_the_reply_says_and_a_cached_prefix_changes_nothing(client: Any) -> None:
    shared: dict[str, Any] = {"model": "smollm2", "messages": ASK, "temperature": 0, "max_tokens": 24}
    first = client.chat.completions.create(**shared)
    again = client.chat.completions.create(**shared)
    streamed = "".join(c.choices[0].delta.content or "" for c in client.chat.completions.create(**shared, stream=True))
    assert first.choices[0].message.content == again.choices[0].message.content == streamed
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1


def test_it_knows_paris(client: Any) -> None:
    reply = client.completions.create(model="smollm2", prompt="The capital of France is", max_tokens=4, temperature=0)
    assert "Paris" in reply.choices[0].text


def test_a_schema(client: Any) -> None:
    properties = {"city": {"type": "string", "maxLength": 20}, "population": {"type": "integer", "minimum": 0, "maximum": 99}}
    schema = {"type": "object", "properties": properties, "required": ["city", "population"], "additionalProperties": False}
    form: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}}
    reply = client.chat.completions.create(model="smollm2", messages=ASK, response_format=form, temperature=0, max_tokens=200)
    assert reply.choices[0].finish_reason == "stop" and set(json.loads(reply.choices[0].message.content)) == {"city", "population"}


def test_a_forced_call(client: Any) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tool: Any = {"type": "function", "function": {"name": "weather", "description": "Weather of a city", "parameters": parameters}}
    messages: list[Any] = [{"role": "user", "content": "How is the weather in Paris?"}]
    shared: dict[str, Any] = {"model": "smollm2", "tools": [tool], "temperature": 0, "max_tokens": 100}
    message = (
        client.chat.completions.create(**shared, messages=messages, tool_choice="required", parallel_tool_calls=False).choices[0].message
    )
    call = message.tool_calls[0]
    assert call.function.name == "weather" and json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 20 degrees."}]
    assert client.chat.completions.create(**shared, messages=messages).choices[0].message.content is not None


def test_claude(server: Running) -> None:
    claude = pytest.importorskip("anthropic").Anthropic(base_url=server.url, api_key="none", max_retries=0)
    with claude.messages.stream(model="smollm2", max_tokens=24, messages=ASK, extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text and final.content[0].text == text and final.usage.output_tokens <= 24


def test_scoring_prefers_the_truth(client: Any) -> None:
    """One pass over a prompt gives the log-probability of every token of it."""

    def score(end: str) -> float:
        reply = client.completions.create(model="smollm2", prompt="The capital of France is" + end, max_tokens=0, echo=True, logprobs=0)
        return sum(reply.choices[0].logprobs.token_logprobs[1:])

    assert score(" Paris") > score(" Madrid") > score(" xylophone")
