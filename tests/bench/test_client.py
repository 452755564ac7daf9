"""The client on a wire: many streams, kept connections, every way in which a reply can fail. No test measures time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.bench.fake_server import fake_server

from ridgeline.bench.client import Client, Target
from ridgeline.bench.client_metrics import Outcome, Slo, figures
from ridgeline.bench.client_read import Reading
from ridgeline.bench.load import Load, Manner
from ridgeline.bench.load_workloads import Session, Turn
from ridgeline.errors import UserError


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with fake_server() as found:
        yield found


def ask(url: str, script: str, tokens: int = 8, timeout: float = 10.0) -> Reading:
    async def once() -> Reading:
        client = Client(Target.of(url), timeout)
        try:
            return (await client.ask("/v1/chat/completions", Manner(script).body([("user", "a b c")], tokens, 1, 0)))[1]
        finally:
            client.close()

    return asyncio.run(once())


def loaded(url: str, script: str, made: list[Session], users: int | None, **manner: str) -> Load:
    async def run() -> Load:
        client = Client(Target.of(url), 10.0)
        load = Load(client, Manner(script, **manner), 30.0)  # type: ignore[arg-type]
        await (load.opened(made) if users is None else load.closed(made, users))
        client.close()
        return load

    return asyncio.run(run())


def sessions(count: int, turns: int = 1, tokens: int = 5) -> list[Session]:
    return [Session(f"s{i}", "sys", tuple(Turn(f"say {t}", tokens) for t in range(turns))) for i in range(count)]


def test_a_stream(url: str) -> None:
    reading = ask(url, "role=0,cached=2", 8)
    assert reading.error is None
    assert (reading.tokens, reading.prompt_tokens, reading.cached_tokens) == (8, 3, 2)
    assert reading.text == " word" * 8 and reading.basis == "tokens" and len(list(reading.gaps())) == 7
    assert reading.first_event_s is not None and reading.first_event_s <= reading.pieces[0].at_s


def test_events_of_several_tokens(url: str) -> None:
    assert ask(url, "tokens=4", 9).basis == "events"
    reading = ask(url, "tokens=4,continuous=1", 9)
    assert reading.basis == "usage" and [p.tokens for p in reading.pieces] == [1, 4, 4] and len(list(reading.gaps())) == 8


@pytest.mark.parametrize(
    ("fault", "word"),
    [("status", "HTTP 429: the queue is full"), ("error", "out of memory"), ("break", "closed"), ("empty", "no text"),
     ("garbage", "not JSON"), ("reset", "closed"), ("hang", "no end within 0.3 s")],
)  # fmt: skip
def test_every_failure_is_an_outcome_with_its_reason(url: str, fault: str, word: str) -> None:
    error = ask(url, f"fault={fault}", timeout=0.3 if fault == "hang" else 10.0).error
    assert error is not None and word in error


def test_a_reply_in_one_document(url: str) -> None:
    reading = ask(url, "fault=json", 6)
    assert reading.error is None and reading.tokens == 6


def test_nobody_there() -> None:
    error = ask("http://127.0.0.1:1", "x").error
    assert error is not None and "cannot connect" in error


def test_failures_are_counted(url: str) -> None:
    load = loaded(url, "fault=status", sessions(5), 2)
    f = figures(load.outcomes, Slo())
    assert (f.requests, f.failed, f.attainment) == (5, 5, 0.0)


def test_a_failed_turn_fails_those_that_would_have_followed(url: str) -> None:
    load = loaded(url, "fault=error", sessions(2, turns=3), 1)
    assert [o.turn for o in load.outcomes] == [0, 1, 2, 0, 1, 2]
    assert all(not o.ok for o in load.outcomes)


def test_later_turns_echo_what_the_model_wrote(url: str) -> None:
    load = loaded(url, "text= echo", sessions(1, turns=3, tokens=4), 1)
    # system 1 word; each turn "say N" and the 4 words of the answer before it
    assert [o.reading.prompt_tokens for o in load.outcomes] == [3, 9, 15]


@pytest.mark.parametrize("users", [1, 3, 40])
def test_closed_loop_keeps_so_many_under_way(url: str, users: int) -> None:
    load = loaded(url, "ttft=0.002", sessions(40), users)
    assert len(load.outcomes) == 40 and load.peak_active == users and load.unsent == 0
    assert {o.id for o in load.outcomes} == {f"s{i}.0" for i in range(40)}


def test_open_loop_waits_for_nobody(url: str) -> None:
    made = [Session(s.id, s.system, s.turns, arrival_s=0.001 * i) for i, s in enumerate(sessions(20))]
    load = loaded(url, "ttft=0.5", made, None)
    assert load.peak_active == 20 and len(load.outcomes) == 20
    due = [o.arrival_s - load.begun_s for o in sorted(load.outcomes, key=lambda o: o.arrival_s)]
    assert due == pytest.approx([s.arrival_s for s in made])
    assert all(o.sent_s >= o.arrival_s for o in load.outcomes)


def test_connections_are_kept_and_dead_ones_replaced(url: str) -> None:
    async def run() -> list[Outcome]:
        client = Client(Target.of(url), 10.0)
        load = Load(client, Manner("x"), 10.0)
        await load.closed(sessions(6), 1)
        kept = list(client._idle)
        assert len(kept) == 1
        for wire in kept:
            wire.close()
        await load.closed(sessions(1), 1)
        client.close()
        return load.outcomes

    assert all(o.ok for o in asyncio.run(run()))


def test_completions_too(url: str) -> None:
    load = loaded(url, "x", sessions(2), 2, endpoint="completions")
    assert all(o.ok for o in load.outcomes) and load.outcomes[0].reading.prompt_tokens == 3


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://a b", "http://x:99999", "http://[::1", "http://x/?q=1"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UserError, match="--url"):
        Target.of(url)


@pytest.mark.parametrize(
    ("text", "url"),
    [("localhost:8000", "http://localhost:8000"), ("http://h/v1/", "http://h:80"), ("https://h/api/v1", "https://h:443/api"),
     ("http://h/v3", "http://h:80"), ("http://[::1]:9", "http://[::1]:9")],
)  # fmt: skip
def test_addresses_as_people_write_them(text: str, url: str) -> None:
    assert Target.of(text).url == url
    assert Target.of(text).prefix == ("/v3" if "v3" in text else "/v1")


def test_a_key_is_never_shown() -> None:
    target = Target.of("h", "secret")
    assert "secret" not in repr(target)
    with pytest.raises(UserError):
        Target.of("h", "a\r\nX: y")


HOSTILE: list[tuple[bytes, str | None]] = [
    (b"", "closed"), (b"hello\r\n\r\n", "not HTTP"), (b"\x00\xff" * 50, "not HTTP"), (b"HTTP/1.1 200 OK\r\n", "closed"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort", "closed"), (b"HTTP/1.1 204 No Content\r\n\r\n", "HTTP 204"),
    (b"HTTP/1.1 301 Moved\r\nLocation: http://x/\r\nContent-Length: 0\r\n\r\n", "HTTP 301"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "not HTTP"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndata:\r\n", "closed"),
    (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\n<h1>", "broke off"),
    (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", "broke off"),
    (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", ""),
    (b"HTTP/1.1 500 Oops\r\nContent-Length: 9\r\n\r\n\xff\xfe broken", "HTTP 500"),
    (b"HTTP/1.1 200 OK\r\n\r\ndata: {\"choices\":[{\"text\":\"hi\",\"finish_reason\":\"stop\"}]}\n\n", None),  # ends with the connection
    (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 55\r\n\r\n"
     b"data: {\"choices\":[{\"text\":\"hi\",\"finish_reason\":\"stop\"}]}", "broke off"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "word"), HOSTILE)
def test_whatever_a_server_sends_is_an_outcome(answer: bytes, word: str | None) -> None:
    async def run() -> Reading:
        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()

        server = await asyncio.start_server(one, "127.0.0.1", 0)
        client = Client(Target.of(f"127.0.0.1:{server.sockets[0].getsockname()[1]}"), 5.0)
        try:
            return (await client.ask("/v1/completions", {}))[1]
        finally:
            client.close()
            server.close()

    error = asyncio.run(run()).error
    assert (error is None) == (word is None)
    assert word is None or word in str(error)
