"""The official clients against the server: scripted conversations, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.fake_engine import FakeEngine
from tests.server.http_server import Running, running
from tests.server.says_and_calls import FORM, says_and_calls
from tests.server.test_tools_http import RUN

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

HELLO: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(FakeEngine(cached=3)) as made:
        yield made


@pytest.fixture(scope="module")
def tools() -> Iterator[Running]:
    with says_and_calls() as made:
        yield made


@pytest.fixture
def client(server: Running) -> Any:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


@pytest.fixture
def claude(server: Running) -> Any:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def test_openai_models(client: Any) -> None:
    assert [m.id for m in client.models.list()] == ["tiny", "tiny-alias"]
    assert client.models.retrieve("tiny-alias").id == "tiny-alias"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_openai_chat(client: Any) -> None:
    reply = client.chat.completions.create(model="tiny", messages=HELLO, n=2, logprobs=True, top_logprobs=2, seed=1, max_tokens=5)
    assert [c.index for c in reply.choices] == [0, 1]
    assert reply.choices[1].message.content == "hello" and reply.choices[1].finish_reason == "length"
    entries = reply.choices[0].logprobs.content
    assert [e.token for e in entries] == list("hello") and all(len(e.top_logprobs) == 2 for e in entries)
    assert reply.usage.completion_tokens == 10 and reply.usage.prompt_tokens_details.cached_tokens == 3


def test_openai_chat_stream(client: Any) -> None:
    stream = client.chat.completions.create(model="tiny", messages=HELLO, stream=True, n=2, stream_options={"include_usage": True})
    texts, finishes, usage = {0: "", 1: ""}, {}, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            finishes[choice.index] = choice.finish_reason
    assert texts == {0: "hello world", 1: "hello world"} and finishes == {0: "stop", 1: "stop"}
    assert usage is not None and usage.completion_tokens == 24


def test_openai_errors(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=HELLO, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x" * 4000}])
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-5", messages=HELLO)


def test_openai_completions(client: Any) -> None:
    reply = client.completions.create(model="tiny", prompt=["ab", "c"], max_tokens=5, n=2, echo=True, logprobs=1)
    assert [c.text for c in reply.choices] == ["abhello", "abhello", "chello", "chello"]
    shown = reply.choices[2].logprobs
    assert shown.tokens == list("chello") and shown.token_logprobs == [None, -0.5, -0.5, -0.5, -0.5, -0.5]
    assert shown.text_offset == [0, 1, 2, 3, 4, 5]
    joined = "".join(c.choices[0].text for c in client.completions.create(model="tiny", prompt=[104, 105], stream=True, echo=True))
    assert joined == "hihello world"


def test_openai_scoring(client: Any) -> None:
    reply = client.completions.create(model="tiny", prompt="abc", max_tokens=0, echo=True, logprobs=0)
    choice = reply.choices[0]
    assert choice.text == "abc" and choice.logprobs.tokens == ["ab", "c"] and choice.logprobs.token_logprobs == [None, -0.25]
    assert reply.usage.completion_tokens == 0


def test_openai_responses(client: Any) -> None:
    reply = client.responses.create(model="tiny", input="hi", instructions="Be kind.")
    assert reply.output_text == "hello world" and reply.status == "completed"
    assert reply.usage.input_tokens_details.cached_tokens == 3
    reply = client.responses.create(model="tiny", input=[*HELLO, *reply.output, *HELLO], max_output_tokens=5)
    assert reply.output_text == "hello" and reply.incomplete_details.reason == "max_output_tokens"
    with client.responses.stream(model="tiny", input="hi") as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    assert final.output_text == "hello world"
    for refused in ({"store": True}, {"previous_response_id": "resp_1"}):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="tiny", input="hi", **refused)
        assert caught.value.param == next(iter(refused))


def test_anthropic_messages(claude: Any, server: Running) -> None:
    reply = claude.messages.create(model="tiny", max_tokens=100, system="Be kind.", messages=HELLO)
    assert reply.content[0].text == "hello world" and reply.stop_reason == "end_turn"
    assert reply.usage.cache_read_input_tokens == 3 and reply.usage.input_tokens > 0
    reply = claude.messages.create(model="tiny", max_tokens=100, messages=HELLO, stop_sequences=["o w"])
    assert reply.content[0].text == "hell" and (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", "o w")
    with claude.messages.stream(model="tiny", max_tokens=5, messages=HELLO) as stream:
        assert "".join(stream.text_stream) == "hello"
        final = stream.get_final_message()
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 5
    form = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    assert claude.messages.create(model="tiny", max_tokens=50, messages=HELLO, output_config=form).content[0].text
    assert server.engine.seen[-1].grammar is not None
    count = claude.messages.count_tokens(model="tiny", messages=HELLO).input_tokens
    assert count == final.usage.input_tokens + final.usage.cache_read_input_tokens


def test_anthropic_errors(claude: Any) -> None:
    image = {"type": "image", "source": {"type": "url", "url": "file:///etc/passwd"}}
    with pytest.raises(anthropic.BadRequestError, match="only text"):
        claude.messages.create(model="tiny", max_tokens=10, messages=[{"role": "user", "content": [image]}])
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="claude-9", max_tokens=10, messages=HELLO)


def test_anthropic_diagnostics(server: Running) -> None:
    def ask(messages: list[Any], previous: str | None, system: str = "s") -> Any:
        body = {"max_tokens": 5, "system": system, "messages": messages, "diagnostics": {"previous_message_id": previous}}
        return server.post("/v1/messages", body)[2]

    first = ask(HELLO, None)
    assert first["diagnostics"]["cache_miss_reason"] is None and first["diagnostics"]["cache"]["cached_tokens"] == 3
    longer = [*HELLO, {"role": "assistant", "content": "x"}, *HELLO]
    assert ask(longer, first["id"])["diagnostics"]["cache_miss_reason"] is None
    changed = ask([{"role": "user", "content": "ho"}], first["id"])["diagnostics"]["cache_miss_reason"]
    assert changed["type"] == "messages_changed" and changed["cache_missed_input_tokens"] > 0
    assert ask(longer, first["id"], "t")["diagnostics"]["cache_miss_reason"]["type"] == "system_changed"
    assert ask(HELLO, "msg_none")["diagnostics"]["cache_miss_reason"]["type"] == "previous_message_not_found"


def test_openai_tools_and_forms(tools: Running) -> None:
    client = openai.OpenAI(base_url=tools.url + "/v1", api_key="none", max_retries=0)
    call: list[Any] = [{"role": "user", "content": "call it"}]
    message = client.chat.completions.create(model="tiny", messages=call, tools=[RUN]).choices[0].message
    wanted = json.loads(message.tool_calls[0].function.arguments)
    assert message.tool_calls[0].function.name == "run" and message.content is None and wanted
    with client.chat.completions.stream(model="tiny", messages=call, tools=[RUN]) as stream:
        done = stream.get_final_completion().choices[0]
    assert done.finish_reason == "tool_calls" and json.loads(done.message.tool_calls[0].function.arguments) == wanted
    history = [*call, message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "ok"}, *HELLO]
    assert client.chat.completions.create(model="tiny", messages=history, tools=[RUN]).choices[0].message.content == "hello world"
    assert client.chat.completions.create(model="tiny", messages=HELLO, response_format=FORM).choices[0].message.content == '{"answer": 42}'
    flat = {"type": "function", **RUN["function"]}
    reply = client.responses.create(model="tiny", input="call it", tools=[flat])
    assert reply.output[0].name == "run" and json.loads(reply.output[0].arguments) == wanted
    with client.responses.stream(model="tiny", input="call it", tools=[flat]) as events:
        done = events.until_done().get_final_response()
    assert json.loads(done.output[0].arguments) == wanted
    more = [*call, reply.output[0], {"type": "function_call_output", "call_id": reply.output[0].call_id, "output": "ok"}, *HELLO]
    assert client.responses.create(model="tiny", input=more, tools=[flat]).output_text == "hello world"


def test_anthropic_tools(tools: Running) -> None:
    client = anthropic.Anthropic(base_url=tools.url, api_key="none", max_retries=0)
    tool = {"name": "run", "input_schema": RUN["function"]["parameters"]}
    asked: Any = {"model": "tiny", "max_tokens": 500, "tools": [tool]}
    call: list[Any] = [{"role": "user", "content": "call it"}]
    reply = client.messages.create(**asked, messages=call)
    assert reply.stop_reason == "tool_use" and reply.content[-1].name == "run" and reply.content[-1].input
    with client.messages.stream(**asked, messages=call) as stream:
        done = stream.get_final_message()
    assert done.stop_reason == "tool_use" and done.content[-1].input == reply.content[-1].input
    result = {"type": "tool_result", "tool_use_id": reply.content[-1].id, "content": "ok"}
    told = {"role": "user", "content": [result, {"type": "text", "text": "hi"}]}
    history = [*call, {"role": "assistant", "content": reply.content}, told]
    assert client.messages.create(**asked, messages=history).content[0].text == "hello world"
    with pytest.raises(anthropic.BadRequestError, match="tool_choice"):
        client.messages.create(**asked, messages=call, tool_choice={"type": "tool", "name": "other"})
