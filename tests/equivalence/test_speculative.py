"""Promise 1 with speculation: with drafts that are right, wrong or half right, each request gets what it gets alone, to the bit.

Engines broken on purpose (rejected keys kept, penalties or noise that do not see the drafts, drafts believed unseen) must fail it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ridgeline.engine.choice import Choice
from ridgeline.engine.core import EngineCore
from ridgeline.engine.speculate import Speculator
from ridgeline.graph.caches import cache_groups
from ridgeline.graph.rewrite import residual_sums, without
from ridgeline.graph.step import Step
from ridgeline.kv.manager import KvCache
from ridgeline.scheduler.state import Sequence
from ridgeline.spec.draft import DraftProposer
from ridgeline.spec.ngram import NgramProposer

pytest.importorskip("ridgeline.backends.cpu.native._native", reason="the native backend is not built")

from tests.equivalence.schedules import MODEL_LEN, REAL, STOCK, Break, Schedule, alone, limits_of, model, stock
from tests.models.tiny import VOCAB
from tests.spec.guessing import Knowing

from ridgeline.backends import cpu

EVENTS = (
    "spec_decode_num_accepted_tokens_per_pos_3", "copies_on_write", "window_releases", "preemptions", "ended_abort", "forks", "evictions",
    "ended_stop", "ended_length", "shared_walks",
)  # fmt: skip


class Guessing(Schedule):
    """A schedule with drafts; the kind of guesses is the seed's."""

    def run(self, events: Counter[str]) -> int:
        then = self.breaks

        def speculate(core: EngineCore) -> None:
            core.speculator = self.speculator(core)
            if then is not None:
                then(core)

        self.breaks = speculate
        return super().run(events)

    def speculator(self, core: EngineCore) -> Speculator:
        if self.family in REAL:  # answers alone run on the same program: all before this schedule's KV is written
            for number in range(STOCK):
                alone(self.family, number, self.kv)
            core.program.native.fill_kv(0xFF)  # type: ignore[attr-defined]
        rng = np.random.default_rng(self.seed)
        most, right = int(rng.integers(1, 9)), float(rng.choice([0.0, 0.5, 0.8, 1.0]))

        def answer(seq_id: int) -> list[int]:
            choice = core._choices[seq_id]
            request = stock(self.family)[int(choice.request_id)]
            return [*request.prompt_ids, *alone(self.family, int(choice.request_id), self.kv).outputs[choice.index].token_ids]

        proposer = NgramProposer(1, 4) if self.seed % 8 == 7 else Knowing(answer, right, VOCAB, self.seed, free=bool(rng.integers(2)))
        predict: Callable[[Step], float] | None = (lambda step: 0.05 + 0.01 * step.rows) if rng.integers(2) else None
        return Speculator(proposer, most, predict, least_batch_off=4 if rng.integers(6) == 0 else None)


@pytest.mark.parametrize("count", [120, pytest.param(1200, marks=pytest.mark.long)])
def test_any_schedule_with_drafts_gives_each_request_what_it_gets_alone(count: int) -> None:
    events: Counter[str] = Counter()
    bad = {seed: wrong for seed in range(count) if (wrong := Guessing(seed).run(events))}
    assert bad == {}
    assert all(events[name] > 5 for name in EVENTS), {name: events[name] for name in EVENTS}
    assert events["spec_decode_num_draft_tokens"] > 1.3 * events["spec_decode_num_accepted_tokens"] > 500
    assert events["ended_error"] == events["backend_faults"] == events["engine_restarts"] == 0


class OfItself(Guessing):
    """The guesses are the model's own, without some half layers, on the weights that the target packed."""

    def speculator(self, core: EngineCore) -> Speculator:
        rng = np.random.default_rng(self.seed)
        graph, tensors = model(self.family)
        sums = residual_sums(graph)
        left = {sums[i] for i in rng.permutation(len(sums))[: int(rng.integers(0, 3))]}
        draft = without(graph, left) if without(graph, left).caches else graph
        windows, plan = [g.window for g in cache_groups(draft.caches)], core.program.plan  # type: ignore[attr-defined]
        blocks = tuple(int(rng.integers(40, 700)) for _ in windows)
        program = cpu.load(draft, tensors, replace(plan, blocks=blocks), shared=core.program.packed)  # type: ignore[attr-defined]
        program.native.fill_kv(0xFF)
        kv = KvCache(windows, blocks, plan.block_size, "radix" if rng.integers(2) else "off")
        proposer = DraftProposer(program, kv, limits_of(self.family).vocab, MODEL_LEN, int(rng.choice([16, 512])))
        return Speculator(proposer, int(rng.integers(1, 6)))


@pytest.mark.parametrize("count", [60, pytest.param(300, marks=pytest.mark.long)])
def test_a_model_that_guesses_for_itself_changes_nothing(count: int) -> None:
    events: Counter[str] = Counter()
    bad = {seed: wrong for seed in range(count) if (wrong := OfItself(seed).run(events))}
    assert bad == {}
    assert all(events[name] > 2 for name in EVENTS if "per_pos" not in name), {name: events[name] for name in EVENTS}
    assert events["spec_decode_num_draft_tokens"] > events["spec_decode_num_accepted_tokens"] > 200
    assert events["ended_error"] == events["backend_faults"] == events["engine_restarts"] == events["speculation_faults"] == 0


def found(breaks: Break | None = None, most: int = 60) -> bool:
    return any(Guessing(seed, breaks=breaks).run(Counter()) for seed in range(most))


def test_keys_of_rejected_drafts_are_found() -> None:
    """The next token is not computed again where a wrong draft stood."""

    class Keeping:
        def __init__(self, program: Any) -> None:
            self._program, self._wrong = program, dict[int, dict[int, int]]()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._program, name)

        def forward(self, step: Step) -> None:
            tokens, at = step.tokens.copy(), 0
            for span in step.spans:
                old = self._wrong.get(span.seq, {})
                for i in range(span.new):
                    tokens[at + i] = old.get(span.past + i, tokens[at + i])
                    if span.want == span.new > 1 and i:
                        self._wrong.setdefault(span.seq, {}).setdefault(span.past + i, int(tokens[at + i]))
                at += span.new
            self._program.forward(replace(step, tokens=tokens))

    def keep(core: EngineCore) -> None:
        core.program = Keeping(core.program)  # type: ignore[assignment]

    assert found(keep)


def warmed(count: int) -> list[Guessing]:
    """Schedules whose answers alone are known before something is broken."""
    for seed in range(count):
        Guessing(seed).run(Counter())
    return [Guessing(seed) for seed in range(count)]


def test_penalties_that_do_not_see_the_drafts_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    schedules = warmed(24)
    monkeypatch.setattr(Sequence, "ahead", lambda self, drafts: self._buffer[: self.known])
    monkeypatch.setattr("ridgeline.scheduler.draft.Draft.build", _build_with(Sequence.__dict__["drafts"]))
    assert any(s.run(Counter()) for s in schedules)


def _build_with(drafts: Any) -> Any:
    """`Draft.build` that reads drafts by itself, so that only penalties are blind to them."""
    from ridgeline.scheduler.draft import Draft

    build = Draft.build

    def built(self: Draft) -> Step:
        ahead = Sequence.ahead
        Sequence.ahead = lambda seq, count: seq._buffer[: seq.known + count]  # type: ignore[method-assign]
        try:
            return build(self)
        finally:
            Sequence.ahead = ahead  # type: ignore[method-assign]

    return built


def test_noise_of_the_wrong_position_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    schedules = warmed(24)
    row = Choice.row
    monkeypatch.setattr(Choice, "row", lambda self, at, ahead=0: replace(row(self, at, ahead), position=self.sequence.known))
    assert any(s.run(Counter()) for s in schedules)


def test_drafts_that_are_believed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    schedules, accept = warmed(24), Choice.accept

    def trusting(self: Choice, token: int, *rest: Any, **more: Any) -> None:
        drafts = self.sequence.drafts  # type: ignore[union-attr]
        at = len(self.new_ids) if more.get("more") else 0
        accept(self, int(drafts[at]) if at < len(drafts) else token, *rest, **more)

    monkeypatch.setattr(Choice, "accept", trusting)
    assert any(s.run(Counter()) for s in schedules)
