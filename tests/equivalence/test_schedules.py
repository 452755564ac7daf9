"""Promise 1 through the whole engine: tokens, log-probabilities and ends of a request are the same bits in any schedule as alone.

The suite is itself checked: every event must occur, and engines and kernels that are broken on purpose must fail it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ridgeline.backends.cpu.program import Fault
from ridgeline.engine.choice import Choice
from ridgeline.engine.core import EngineCore
from ridgeline.graph.step import Step
from ridgeline.kv.index import Path

pytest.importorskip("ridgeline.backends.cpu.native._native", reason="the native backend is not built")

from tests.equivalence.schedules import FAMILIES, STOCK, Break, Schedule, alone

EVENTS = (
    "hits_inside_block", "copies_on_write", "window_evictions", "window_releases", "shared_walks", "preemptions", "ended_abort", "forks",
    "evictions", "prefix_complete", "prefix_evicted", "prefix_never_seen", "ended_stop", "ended_length",
)  # fmt: skip


@pytest.mark.parametrize("count", [500, pytest.param(3000, marks=pytest.mark.long)])
def test_any_schedule_gives_each_request_what_it_gets_alone(count: int) -> None:
    events: Counter[str] = Counter()
    bad = {seed: wrong for seed in range(count) if (wrong := Schedule(seed).run(events))}
    assert bad == {}
    assert all(events[name] > 5 for name in EVENTS), {name: events[name] for name in EVENTS}
    assert events["ended_error"] == events["backend_faults"] == events["engine_restarts"] == 0


def test_scored_prompts_resume_while_the_rows_of_a_step_are_used_up() -> None:
    """A preempted prompt hit all that it had scored, when others had taken the step's logits rows: it got a span of no tokens."""
    assert Schedule(582).run(Counter()) == 0


def found(faults: tuple[Fault, ...] = (), breaks: Break | None = None, most: int = 120) -> bool:
    """Whether some schedule shows that something is wrong."""
    return any(Schedule(seed, faults, breaks).run(Counter()) for seed in range(most))


@pytest.mark.parametrize("fault", ["split_k", "block_segments", "no_copy", "stale_kv", "block_scales"])
def test_broken_kernels_are_found(fault: Fault) -> None:
    assert found(faults=(fault,))


class _Program:
    """A program that passes everything on, but for what a test changes."""

    def __init__(self, program: Any) -> None:
        self._program = program

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)


def no_copies(core: EngineCore) -> None:
    class Without(_Program):
        def forward(self, step: Step) -> None:
            self._program.forward(Step(step.spans, step.tokens, step.tables, (), step.shared))

    core.program = Without(core.program)  # type: ignore[assignment]


def walk_too_far(core: EngineCore) -> None:
    """Shared walks one segment longer than what the spans share."""

    class Farther(_Program):
        def forward(self, step: Step) -> None:
            tables = tuple(
                tuple(step.tables[g][walk.spans[0]] if i in walk.spans else t for i, t in enumerate(step.tables[g]))
                for walk in step.shared[:1]
                for g in range(len(step.tables))
            )
            self._program.forward(Step(step.spans, step.tokens, tables or step.tables, step.copies, step.shared))

    core.program = Farther(core.program)  # type: ignore[assignment]


def trusting_match(core: EngineCore) -> None:
    """A prefix index that takes a prompt for known when its first tokens are."""
    index = core.state.kv.index
    if index is None:
        return
    match = index.match

    def trust(space: bytes, tokens: Any) -> Path:
        path = match(space, tokens)
        longer = min(len(tokens), path.tokens + 1 if path.tokens % core.state.kv.block_size else path.tokens)
        return Path(longer, path.blocks, path.gone_at, path.known_space)

    index.match = trust  # type: ignore[method-assign]


@pytest.mark.parametrize("breaks", [no_copies, walk_too_far, trusting_match])
def test_broken_engines_are_found(breaks: Break) -> None:
    assert found(breaks=breaks)


def test_a_noise_that_counts_steps_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = iter(range(10**9))
    row = Choice.row
    monkeypatch.setattr(Choice, "row", lambda self, *at: replace(row(self, *at), position=next(steps)))
    assert found()


def test_penalties_that_forget_the_prompt_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Choice.row
    schedules = [Schedule(seed) for seed in range(40)]
    assert not any(s.run(Counter()) for s in schedules[:3])  # the answers alone are known before the fault
    _ = [s.run(Counter()) for s in schedules]
    monkeypatch.setattr(Choice, "row", lambda self, *at: replace(row(self, *at), prompt_ids=None))
    assert any(s.run(Counter()) for s in schedules)


def test_siblings_that_share_their_noise_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Choice.row
    schedules = [Schedule(seed) for seed in range(40)]
    _ = [s.run(Counter()) for s in schedules]
    monkeypatch.setattr(Choice, "row", lambda self, *at: replace(row(self, *at), choice=0))
    assert any(s.run(Counter()) for s in schedules)


def test_answers_alone_are_worth_comparing() -> None:
    """Different prompts and seeds give different answers: a comparison of constants would prove nothing."""
    for family in FAMILIES:
        outs = [c for i in range(STOCK) for c in alone(family, i, "f32").outputs]
        assert len({tuple(c.token_ids) for c in outs}) > 0.9 * len(outs)
        assert sum(len(set(c.token_ids)) for c in outs) > 0.5 * sum(len(c.token_ids) for c in outs)
        assert all(np.isfinite(value) for c in outs for listed in c.logprobs or [] for value in listed.values())
