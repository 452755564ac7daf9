"""A mixed load on `ridgeline serve` for as long as asked: every request gets its end, nothing stays behind, memory stays flat.

python -m tests.server.soak MODEL --seconds 3600 --workers 8 --rate 0        (rate: requests per second, 0 for as fast as they are answered)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.server.process import serving
from tests.server.raw import request

from ridgeline.backends.cpu import default_threads

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
WORDS = ("river", "stone", "light", "paper", "garden", "winter", "music", "engine", "silver", "market", "window", "letter")
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "warm": {"type": "boolean"}},
          "required": ["city", "warm"], "additionalProperties": False}  # fmt: skip
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
ONCE = "connection: close\r\n"
STEM = " ".join(WORDS * 12)  # a prefix that many share


def ask(chance: random.Random) -> tuple[str, str, dict[str, Any], int]:
    """(kind, path, body, status that must come)."""
    words = " ".join(chance.choice(WORDS) for _ in range(chance.choice((3, 10, 40, 200))))
    few = chance.choice((1, 8, 24, 60, 200))
    talk = [{"role": "user", "content": words}]
    return chance.choice([
        ("chat", CHAT, {"messages": talk, "max_tokens": few}, 200),
        ("stream", CHAT, {"messages": talk, "max_tokens": few, "stream": True, "stream_options": {"include_usage": True}}, 200),
        ("samples", CHAT, {"messages": talk, "max_tokens": few, "n": 3, "temperature": 1.5, "stream": chance.random() < 0.5}, 200),
        ("prefix", CHAT, {"messages": [{"role": "system", "content": STEM}, *talk], "max_tokens": few, "stream": True}, 200),
        ("logprobs", CHAT, {"messages": talk, "max_tokens": 8, "logprobs": True, "top_logprobs": 5}, 200),
        ("schema", CHAT, {"messages": talk, "max_tokens": 40, "response_format": FORM, "stream": chance.random() < 0.5}, 200),
        ("tool", CHAT, {"messages": talk, "max_tokens": 60, "tools": [TOOL], "tool_choice": chance.choice(("auto", "required"))}, 200),
        ("texts", TEXT, {"prompt": [words, "once upon a time"], "max_tokens": few, "ignore_eos": True}, 200),
        ("score", TEXT, {"prompt": words, "max_tokens": 0, "echo": True, "logprobs": 1}, 200),
        ("claude", "/v1/messages", {"messages": talk, "max_tokens": few, "stream": chance.random() < 0.5}, 200),
        ("responses", "/v1/responses", {"input": words, "max_output_tokens": few, "stream": chance.random() < 0.5}, 200),
        ("tokenize", "/tokenize", {"prompt": words}, 200),
        ("wrong", CHAT, {"messages": talk, "temperature": -1, "stream": True}, 400),
        ("too long", TEXT, {"prompt": "word " * 5000}, 400),
        ("bad schema", CHAT, {"messages": talk, "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 7}}}}, 400),
        ("unknown", CHAT, {"messages": talk, "model": "nobody"}, 404),
        ("leaves", CHAT, {"messages": talk, "max_tokens": 200, "ignore_eos": True, "stream": chance.random() < 0.7}, 0),
    ])  # fmt: skip


@dataclass
class Soak:
    """Mutable: what happened so far. faults: requests without their right end."""

    port: int
    pid: int
    seconds: float
    rate: float
    done: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    rss: list[tuple[float, int]] = field(default_factory=list)  # seconds, bytes

    async def run(self, workers: int, seed: int) -> None:
        """The whole load, then a second of silence."""
        await self._widest(workers)
        began = time.monotonic()
        watch = asyncio.ensure_future(self._watch(began))
        await asyncio.gather(*(self._work(began, random.Random(seed + i), workers) for i in range(workers)))
        await asyncio.sleep(1.0)
        watch.cancel()

    async def _widest(self, workers: int) -> None:
        """A full chunk, one whose every token is scored, and every kind from all workers at once: what a step, a grammar and a reply need
        grows to its bound here, and not at a chance later on."""
        words = " ".join(WORDS * 50)
        for body in ({"prompt": words, "max_tokens": 2}, {"prompt": words, "max_tokens": 0, "echo": True, "logprobs": 1}):
            await self._all_well(TEXT, [body])
        chance = random.Random(0)
        kinds: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        while min(map(len, kinds.values()), default=0) < workers:
            for kind, path, body, status in [ask(chance) for _ in range(200)]:
                if status == 200 and len(kinds.setdefault(kind, [])) < workers:
                    kinds[kind].append((path, body))
        for asked in kinds.values():
            await self._all_well(asked[0][0], [body for _, body in asked])

    async def _all_well(self, path: str, bodies: list[dict[str, Any]]) -> None:
        for status, data in await asyncio.gather(*(fetch(self.port, "POST", path, body) for body in bodies)):
            if status != 200:
                self.faults.append(f"widest, {path}: status {status}, {data[-300:]!r}")

    async def _watch(self, began: float) -> None:
        while True:
            status = Path(f"/proc/{self.pid}/status").read_text()
            self.rss.append((time.monotonic() - began, 1024 * int(status.split("VmRSS:")[1].split()[0])))
            await fetch(self.port, "GET", "/metrics", None)
            await asyncio.sleep(1.0)

    async def _work(self, began: float, chance: random.Random, workers: int) -> None:
        while time.monotonic() - began < self.seconds:
            if self.rate:
                await asyncio.sleep(chance.expovariate(self.rate / workers))
            kind, path, body, status = ask(chance)
            try:
                if status == 0:
                    await leave(self.port, path, body, chance.random() * 0.3)
                    self.done[kind] += 1
                    continue
                got, data = await asyncio.wait_for(fetch(self.port, "POST", path, body), 120)
            except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
                self.faults.append(f"{kind}: {type(error).__name__} {error}")
                continue
            self.done[kind] += 1
            if got != status or not whole(path, body, status, data):
                self.faults.append(f"{kind}: status {got}, {data[-300:]!r}")

    def growth(self, warm: float) -> float:
        """Last fifth's median memory over that of the fifth after `warm` seconds, minus one."""
        late = [b for t, b in self.rss if t >= warm]
        part = max(1, len(late) // 5)
        return statistics.median(late[-part:]) / statistics.median(late[:part]) - 1


def whole(path: str, body: dict[str, Any], status: int, data: bytes) -> bool:
    """The reply has its end."""
    if status != 200 or not body.get("stream"):
        return isinstance(json.loads(data), dict)
    last = data.rstrip().rpartition(b"\n\n")[2]
    return {"/v1/messages": b"message_stop" in last, "/v1/responses": b"response.completed" in last or b"response.incomplete" in last}.get(
        path, last == b"data: [DONE]"
    )


async def fetch(port: int, method: str, path: str, body: Any) -> tuple[int, bytes]:
    """(status, body) of one request on a connection of its own. A reply that is cut short raises."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        writer.write(request(path, b"" if body is None else body, method=method, headers=ONCE))
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        data = b""
        if fields.get("transfer-encoding") == "chunked":
            while size := int(await reader.readuntil(b"\r\n"), 16):
                data += (await reader.readexactly(size + 2))[:-2]
        else:
            data = await reader.readexactly(int(fields.get("content-length", "0")))
        return int(lines[0].split()[1]), data
    finally:
        writer.close()


async def leave(port: int, path: str, body: Any, after: float) -> None:
    """Ask, and go away."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(path, body, headers=ONCE))
    await asyncio.sleep(after)
    writer.close()


def gauge(text: str, name: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))


async def quiet(port: int) -> str:
    """Metrics once nothing runs. Raises after 30 s."""
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "ridgeline:choices_pending", "vllm:kv_cache_usage_perc")
    for _ in range(300):
        text = (await fetch(port, "GET", "/metrics", None))[1].decode()
        if not any(gauge(text, name) for name in names):
            return text
        await asyncio.sleep(0.1)
    raise AssertionError({name: gauge(text, name) for name in names})


def soak(model: str, seconds: float, workers: int, rate: float, seed: int = 1) -> tuple[Soak, str, int]:
    """(what happened, the last metrics, exit code). The KV cache is small, so that it is full after a moment and always in want of room."""
    small = ("--max-model-len", "1k", "--kv-cache-memory-bytes", "32MiB", "--max-num-seqs", "16", "--threads", str(default_threads()))
    with serving(model, *small, "--quiet") as server:
        found = Soak(server.port, server.process.pid, seconds, rate)

        async def run() -> str:
            await found.run(workers, seed)
            return await quiet(found.port)

        text = asyncio.run(run())
        server.signal(signal.SIGTERM)
        return found, text, server.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rate", type=float, default=0.0)
    given = parser.parse_args()
    found, text, code = soak(given.model, given.seconds, given.workers, given.rate)
    growth, total = found.growth(min(60.0, given.seconds / 3)), sum(found.done.values())
    print(f"{total} requests in {given.seconds:g} s, {len(found.faults)} without their right end; exit code {code}")
    print("  " + ", ".join(f"{kind} {count}" for kind, count in sorted(found.done.items())))
    preempted, evicted = (gauge(text, f"{name}_total") for name in ("vllm:num_preemptions", "ridgeline:kv_evictions"))
    print(f"memory {found.rss[-1][1] / 1e6:.1f} MB, {growth:+.2%} since it was warm; {preempted:.0f} preemptions, {evicted:.0f} evictions")
    for fault in found.faults[:20]:
        print("  " + fault)
    return int(bool(found.faults) or abs(growth) > 0.02 or code != 0)


if __name__ == "__main__":
    raise SystemExit(main())
