"""A small OpenAI-compatible server around OpenVINO GenAI's continuous batching, to measure it. Run by a Python that has it.

Imports nothing of ours: it runs in the peer's environment. One thread steps the pipeline, a thread per connection writes events.
"""

from __future__ import annotations

import argparse
import importlib
import json
import queue
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

IDLE_S = 0.002


class Engine:
    """The pipeline and its requests. Only `loop` touches the pipeline; others put requests into a queue."""

    def __init__(self, model: str, threads: int, seqs: int, batched: int, cache_gb: int) -> None:
        genai: Any = importlib.import_module("openvino_genai")
        self.genai = genai
        config = genai.SchedulerConfig()
        config.cache_size, config.max_num_seqs, config.max_num_batched_tokens = cache_gb, seqs, batched
        config.dynamic_split_fuse, config.enable_prefix_caching = True, True
        self.pipe = genai.ContinuousBatchingPipeline(model, config, "CPU", {"INFERENCE_NUM_THREADS": threads})
        self.tokenizer = self.pipe.get_tokenizer()
        self.waiting: queue.SimpleQueue[tuple[str, Any, queue.SimpleQueue[Any]]] = queue.SimpleQueue()

    def loop(self) -> None:
        """For ever. A request's queue gets lists of token ids, then None; or an exception."""
        running: list[tuple[Any, queue.SimpleQueue[Any]]] = []
        number = 0
        while True:
            while not self.waiting.empty() or not running:
                prompt, config, out = self.waiting.get()
                try:
                    running.append((self.pipe.add_request(number, prompt, config), out))
                except Exception as error:
                    out.put(error)
                number += 1
            if self.pipe.has_non_finished_requests():
                self.pipe.step()
            else:
                time.sleep(IDLE_S)
            running = [pair for pair in running if self._news(*pair)]

    def _news(self, handle: Any, out: queue.SimpleQueue[Any]) -> bool:
        """Whether more will come."""
        while handle.can_read():
            for made in handle.read().values():
                out.put(list(made.generated_ids))
        if handle.get_status() == self.genai.GenerationStatus.RUNNING:
            return True
        out.put(None)
        return False

    def ask(self, asked: dict[str, Any], chat: bool) -> tuple[int, queue.SimpleQueue[Any]]:
        """(prompt tokens, queue of what comes)."""
        prompt = self.tokenizer.apply_chat_template(asked["messages"], add_generation_prompt=True) if chat else asked["prompt"]
        config = self.genai.GenerationConfig()
        config.max_new_tokens, config.do_sample = int(asked.get("max_tokens") or 128), False
        config.ignore_eos = bool(asked.get("ignore_eos"))
        if not config.ignore_eos:
            config.set_eos_token_id(self.tokenizer.get_eos_token_id())
        ids = self.tokenizer.encode(prompt, add_special_tokens=not chat).input_ids
        out: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.waiting.put((ids, config, out))
        return int(ids.shape[1]), out


def handler(engine: Engine, name: str) -> type[BaseHTTPRequestHandler]:
    """The class that answers one connection."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._document(200, {"object": "list", "data": [{"id": name, "object": "model"}]})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            chat = self.path.endswith("/chat/completions")
            try:
                prompt, out = engine.ask(asked, chat)
            except Exception as error:
                self._document(400, {"error": {"message": str(error)}})
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            made = self._stream(out, chat)
            self._event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": made}})
            self._chunk(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")

        def _stream(self, out: queue.SimpleQueue[Any], chat: bool) -> int:
            """Tokens made. Each event is what one step brought, decoded alone."""
            made = 0
            while (ids := out.get()) is not None:
                if isinstance(ids, Exception):
                    self._event({"error": {"message": str(ids)}})
                    break
                made += len(ids)
                text = engine.tokenizer.decode(ids)
                self._event({"choices": [{"index": 0, "delta": {"content": text}} if chat else {"index": 0, "text": text}]})
            else:
                end: dict[str, Any] = {"index": 0, "finish_reason": "length", "delta" if chat else "text": {} if chat else ""}
                self._event({"choices": [end]})
            return made

        def _event(self, document: dict[str, Any]) -> None:
            self._chunk(b"data: " + json.dumps(document).encode() + b"\n\n")

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

        def _document(self, status: int, document: dict[str, Any]) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    options = {"--port": 8000, "--threads": 2, "--max-num-seqs": 64, "--max-num-batched-tokens": 512, "--cache-size": 1}
    for option, default in options.items():
        parser.add_argument(option, type=int, default=default)
    given = parser.parse_args()
    engine = Engine(given.model, given.threads, given.max_num_seqs, given.max_num_batched_tokens, given.cache_size)
    threading.Thread(target=engine.loop, daemon=True).start()
    server = ThreadingHTTPServer(("127.0.0.1", given.port), handler(engine, given.model))
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
