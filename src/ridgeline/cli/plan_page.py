"""`ridgeline plan --page`: the planner page on a local server without a model. Prints its address; opens nothing unless asked."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlencode

from ridgeline.cli.output import note
from ridgeline.cli.plan import model_facts
from ridgeline.planner.catalog import models
from ridgeline.planner.facts import ModelFacts
from ridgeline.planner.question import Question
from ridgeline.planner.question_text import texts_of
from ridgeline.server.plan_desk import THIS_HOST, Host


def open_page(asked: Question, *, port: int, show: bool) -> None:
    """The page for what was typed: a model that is a file becomes one of its names. Raises `UserError` for what cannot be read."""
    texts = texts_of(asked)
    own: dict[str, Callable[[], ModelFacts]] = {}
    if asked.this_host:
        from ridgeline.backends.cpu import default_threads
        from ridgeline.bench.probe import machine

        machine(asked.threads or default_threads())  # a second, when nothing is known yet
        texts["device"] = THIS_HOST
    if asked.model:
        facts = model_facts(asked.model)
        texts["model"] = facts.name
        if facts.name not in models():
            own[facts.name] = lambda: facts
    serve_page(own, texts, port=port, hardware=asked.hardware_file, show=show)


def serve_page(
    own: Mapping[str, Callable[[], ModelFacts]], asked: Mapping[str, str], *, port: int, hardware: Path | None, show: bool
) -> None:
    """Until Ctrl-C. own: models that this command may read by name; asked: what the page opens with. Raises `UserError` for the port."""
    from uvicorn import Config, Server

    from ridgeline.server.gate import GateRules, loopback_names
    from ridgeline.server.plan_app import plan_app
    from ridgeline.server.plan_desk import Desk
    from ridgeline.server.run import bind

    sock = bind("127.0.0.1", port)
    rules = GateRules(loopback_names("127.0.0.1"))
    app = plan_app(Desk(own, this_host, hardware=hardware, local=True), rules)
    query = urlencode({k: v for k, v in asked.items() if v})
    address = f"http://localhost:{sock.getsockname()[1]}/plan" + (f"?{query}" if query else "")
    note(f"the planner is at {address} (Ctrl-C ends)")
    if show:
        webbrowser.open(address)
    server = Server(Config(app, lifespan="off", log_level="warning", access_log=False, server_header=False))
    server.run(sockets=[sock])


def this_host() -> Host | None:
    """This machine, if its ceilings were measured before; nothing is measured here."""
    from ridgeline.backends.cpu import default_threads
    from ridgeline.backends.cpu.program import choose_isa
    from ridgeline.bench.calibrate import load_calibration
    from ridgeline.bench.probe import kept
    from ridgeline.engine.machine import memory_budget
    from ridgeline.planner.setup import host_device

    threads = default_threads()
    machine = kept(threads)
    if machine is None:
        return None
    return Host(host_device(machine, memory_budget()), load_calibration(threads, choose_isa(None)))
