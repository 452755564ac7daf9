"""One rung in a process of its own: load, warm up, answer, write down every time. `python -m ridgeline.bench.ladder_cell SPEC RESULT`.

Or on the clock, before that: what it should come to. What is made of the times is `ladder_numbers`' business.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np

from ridgeline.bench.clocked import Clocked, fitted_or_least
from ridgeline.bench.drive import drive
from ridgeline.bench.machine_load import cpu_time
from ridgeline.bench.workloads import Job, OpenLoop
from ridgeline.engine.core import EngineCore
from ridgeline.engine.loader import LoadedModel, isa_of, load, make_core, open_model
from ridgeline.engine.words import TextSource
from ridgeline.errors import InternalError
from ridgeline.formats.kept import write_json
from ridgeline.options import make_options


@dataclass(frozen=True, slots=True)
class Request:
    """One answered request; seconds from the moment its wave could begin (arrival 0: all came at once). ids: what was generated."""

    prompt_tokens: int
    cached_tokens: int
    wave_s: float
    admitted_s: float
    token_s: list[float]
    ids: list[int]


@dataclass(slots=True)
class CellResult:
    """kv: per step (sequences running, tokens they hold in the cache, share of KV blocks in use). cold_s, warm_s: time to first token of
    the same short request, first and second time in the process. load_s: from nothing to ready. steal, others: CPU shares taken by the
    hypervisor and by other processes while it ran."""

    rung: str
    seconds: float = 0.0
    requests: list[Request] = field(default_factory=list)
    kv: list[tuple[int, int, float]] = field(default_factory=list)
    cold_s: float = 0.0
    warm_s: float = 0.0
    load_s: float = 0.0
    steal: float = 0.0
    others: float = 0.0
    steps: int = 0
    setup: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


def answer(
    core: EngineCore, text: TextSource, prompts: Sequence[Sequence[int]], outputs: Sequence[int], wave: int, result: CellResult
) -> None:
    """All prompts, `wave` at a time (0: all at once). Times go to `result`. The engine's clock may be virtual: nobody sleeps here."""
    made: dict[str, list[int]] = {}
    jobs = [Job(f"r{i}", 0.0, np.array(p, np.int32), n) for i, (p, n) in enumerate(zip(prompts, outputs, strict=True))]
    size = wave or len(jobs)
    begun = core.clock()
    for first in range(0, len(jobs), size):
        at = core.clock() - begun
        part = jobs[first : first + size]
        done = drive(core, text, OpenLoop("wave", part), sleep, lambda: _note(core, result, made))
        _note(core, result, made)
        result.steps += done.steps
        for live in done.lives:
            times = [at + t for t in live.token_s]
            result.requests.append(Request(len(live.job.prompt), live.hit, at, at + live.admitted_s, times, made[live.job.id]))
    result.seconds = core.clock() - begun


def _note(core: EngineCore, result: CellResult, made: dict[str, list[int]]) -> None:
    """Between two steps: the fill of the cache, and what has been generated."""
    state = core.state
    running = [s for s in state.running if s.table is not None]
    if running:
        free, cached, used = max(state.kv.usage(), key=lambda u: u[2] / max(1, sum(u)))
        result.kv.append((len(running), sum(s.computed for s in running), used / max(1, free + cached + used)))
    for id, asked in core.requests.items():
        made[id] = asked.choices[0].token_ids


def run(spec: dict[str, Any]) -> CellResult:
    """spec: rung, model, options, prompts, outputs, wave."""
    model = load(make_options(spec["model"], spec["options"]))
    if spec["options"].get("max_num_seqs") != model.plan.max_num_seqs:
        raise InternalError("the engine has another number of slots than it was asked for")
    result = CellResult(spec["rung"], load_s=model.load_s)
    result.cold_s, result.warm_s = _first_tokens(model, spec["prompts"][0])
    core = make_core(model, paced=False)
    before = cpu_time()
    answer(core, model.text, spec["prompts"], spec["outputs"], spec["wave"], result)
    noise = cpu_time() - before
    result.steal, result.others = noise.steal, noise.others
    plan = model.plan
    result.setup = {
        "threads": plan.threads, "isa": isa_of(model.program, plan), "kv_dtype": plan.kv_dtype, "kv_bytes": plan.kv_bytes,
        "blocks": plan.blocks[0] if plan.blocks else 0, "slots": plan.max_num_seqs, "chunk": plan.chunk,
    }  # fmt: skip
    result.counts = {k: int(v) for k, v in {**core.metrics.counts, **core.state.counts}.items()}
    return result


def _first_tokens(model: LoadedModel, prompt: Sequence[int]) -> tuple[float, float]:
    """Cold start: the same short request twice on an engine that is thrown away, nothing cached between."""
    took = []
    for _ in range(2):
        core = make_core(model, prefix_cache="off", paced=False)
        done = drive(core, model.text, OpenLoop("one", [Job("warm", 0.0, np.array(prompt[:64], np.int32), 2)]), sleep)
        took.append(done.lives[0].first_s)
    return took[0], took[1]


def predict(spec: Mapping[str, Any]) -> tuple[CellResult, str]:
    """(what `run` would measure, where its times are from). Nothing is known of what depends on the words (speculation)."""
    model = open_model(make_options(spec["model"], dict(spec["options"])))
    seconds, label = fitted_or_least(model)
    clock, result = Clocked(model, seconds), CellResult(spec["rung"])
    core, _ = clock.core(paced=False)
    answer(core, clock.text, spec["prompts"], spec["outputs"], spec["wave"], result)
    return result, label


def main(spec: Path, out: Path) -> None:
    result = run(json.loads(spec.read_text("utf8")))
    write_json(out, asdict(result), None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
