"""What breaks ends alone: a backend's fault, a sampler's, a grammar's, a detokenizer's, a broken invariant, Ctrl-C. The engine lives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.engine.fakes import EOS, VOCAB, FakeProgram, hashed_logits
from tests.engine.running import alone, make_core, run, submit

from ridgeline.errors import InternalError
from ridgeline.graph.step import Step
from ridgeline.sampling.guide import Mask, mask_of
from ridgeline.sampling.plan import Sampled, SamplePlan
from ridgeline.types import SamplingParams

GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)


class Faulty(FakeProgram):
    """Fails the `fail_at`-th forward, or samples of any row in `bad_rows` (when it is asked with others too)."""

    def __init__(self, *, fail_at: int = -1, error: BaseException | None = None, bad_token: int | None = None, **more: Any) -> None:
        super().__init__(hashed_logits(), **more)
        self.fail_at, self.error, self.bad_token = fail_at, error or InternalError("device lost"), bad_token

    def forward(self, step: Step) -> None:
        if len(self.steps) == self.fail_at:
            self.fail_at = -1
            raise self.error
        super().forward(step)

    def sample(self, plan: SamplePlan) -> Sampled:
        if any(row.bias_ids is not None and self.bad_token in row.bias_ids for row in plan.rows):
            raise ValueError("this row cannot be sampled")
        return super().sample(plan)


@pytest.mark.parametrize("fail_at", [0, 1, 2, 5])
def test_a_backend_fault_ends_who_was_in_the_step_and_nobody_else(fail_at: int) -> None:
    core = make_core(Faulty(fail_at=fail_at, blocks=(80,)), seqs=3)
    prompts = [[9, i] * 6 for i in range(6)]
    asked = [submit(core, p, GREEDY) for p in prompts]
    run(core, *asked)
    failed = [one for one in asked if one.choices[0].finish == "error"]
    assert 1 <= len(failed) <= 3 and all("device lost" in str(one.choices[0].stop_reason) for one in failed)
    for one, prompt in zip(asked, prompts, strict=True):
        assert one in failed or [one.choices[0].token_ids] == alone(prompt, GREEDY)
    assert core.metrics.counts["backend_faults"] == 1 and core.metrics.counts["engine_restarts"] == 0
    for prompt in prompts:  # nothing half computed is reused
        assert run(core, submit(core, prompt, GREEDY)) == alone(prompt, GREEDY)


def test_a_fault_with_copies_pending_leaves_no_stale_block() -> None:
    """The step that was to copy a half-hit block fails: the next hit must not read the copy that was never made."""
    program = Faulty(blocks=(80,))
    core = make_core(program)
    stem = list(range(50, 61))
    run(core, submit(core, stem, GREEDY))
    program.fail_at = len(program.steps)
    run(core, submit(core, [*stem, 5], GREEDY))
    for prompt in ([*stem, 5], [*stem, 6], stem):
        assert run(core, submit(core, prompt, GREEDY)) == alone(prompt, GREEDY)


def test_a_sampler_fault_ends_its_row_alone() -> None:
    core = make_core(Faulty(bad_token=77))
    fine = [submit(core, [1, i], GREEDY) for i in range(3)]
    bad = submit(core, [1, 2], SamplingParams(max_tokens=8, logit_bias=((77, 1.0),)))
    assert run(core, *fine) == [t for i in range(3) for t in alone([1, i], GREEDY)]
    assert bad.choices[0].finish == "error" and bad.choices[0].token_ids == []


class Letters:
    """A grammar of `count` ids out of `allowed`."""

    confines, done = True, False

    def __init__(self, allowed: list[int], count: int, fail_at: int = -1) -> None:
        self.allowed_ids, self.count, self.fail_at, self.seen = allowed, count, fail_at, list[int]()

    def allowed(self) -> Mask | None:
        if len(self.seen) == self.fail_at:
            raise RuntimeError("the grammar broke")
        return mask_of(self.allowed_ids, VOCAB)

    def accept(self, token: int) -> bool:
        assert token in self.allowed_ids
        self.seen.append(token)
        return len(self.seen) == self.count

    def rollback(self, count: int) -> None:
        del self.seen[len(self.seen) - count :]


def test_a_grammar_masks_each_choice_and_ends_it() -> None:
    made: list[Letters] = []

    def grammar() -> Letters:
        made.append(Letters([65, 66, 67], 5))
        return made[-1]

    core = make_core(FakeProgram(hashed_logits()))
    params = SamplingParams(n=3, max_tokens=20, seed=1, temperature=3.0, bad_words=("A",), ignore_eos=True)
    asked, free = submit(core, [1, 2], params, grammar=grammar), submit(core, [1, 2], GREEDY)
    run(core, asked, free)
    assert [c.token_ids for c in asked.choices] == [g.seen for g in made] and len(made) == 3
    assert all(c.finish == "stop" and len(c.token_ids) == 5 and set(c.token_ids) <= {66, 67} for c in asked.choices)
    assert [free.choices[0].token_ids] == alone([1, 2], GREEDY)


def test_a_grammar_that_breaks_ends_its_request_alone() -> None:
    core = make_core(FakeProgram(hashed_logits()))
    broken = submit(core, [1, 2], SamplingParams(max_tokens=20, ignore_eos=True), grammar=lambda: Letters([65], 99, fail_at=3))
    stuck = submit(core, [1, 2], SamplingParams(max_tokens=20, ignore_eos=True), grammar=lambda: Letters([], 99))
    fine = submit(core, [1, 2], GREEDY)
    run(core, broken, stuck, fine)
    assert (broken.choices[0].finish, broken.choices[0].token_ids) == ("error", [65] * 3)
    assert "grammar broke" in str(broken.choices[0].stop_reason) and stuck.choices[0].finish == "error"
    assert [fine.choices[0].token_ids] == alone([1, 2], GREEDY)


def test_a_detokenizer_that_breaks_ends_its_choice_alone() -> None:
    core = make_core(FakeProgram(hashed_logits()))
    bad, fine = submit(core, [1, 2], GREEDY), submit(core, [3, 4], GREEDY)
    core.step()

    class Broken:
        matched, text = None, ""

        def push(self, id: int, *, may_stop: bool = True) -> str:
            raise UnicodeError("no such character")

        def finish(self) -> str:
            return ""

    bad.choices[0].out = Broken()  # type: ignore[assignment]
    run(core, bad, fine)
    assert bad.choices[0].finish == "error" and "no such character" in str(bad.choices[0].stop_reason)
    assert [fine.choices[0].token_ids] == alone([3, 4], GREEDY)


def test_a_broken_invariant_ends_everything_and_the_engine_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core(FakeProgram(hashed_logits()))
    asked = [submit(core, [i, 2], SamplingParams(n=2, max_tokens=8)) for i in range(3)]
    core.step()
    with monkeypatch.context() as patch:
        patch.setattr("ridgeline.engine.core.apply", lambda *_: 1 // 0)
        ended = core.step()
    assert len(ended) == 6 and not core.busy
    assert all(c.finish == "error" and "ZeroDivisionError" in str(c.stop_reason) for one in asked for c in one.choices)
    assert core.metrics.counts["engine_restarts"] == 1 and core.metrics.counts["finished"] == 3
    assert run(core, submit(core, [1, 2], GREEDY)) == alone([1, 2], GREEDY)


@pytest.mark.parametrize("fail_at", [0, 2, 4])
def test_ctrl_c_in_the_middle_of_a_step_leaves_a_working_engine(fail_at: int) -> None:
    core = make_core(Faulty(fail_at=fail_at, error=KeyboardInterrupt()))
    asked = [submit(core, [i, 2], GREEDY) for i in range(3)]
    with pytest.raises(KeyboardInterrupt):
        run(core, *asked)
    assert not core.busy and all(c.finish == "error" for one in asked for c in one.choices)
    assert run(core, submit(core, [1, 2], GREEDY)) == alone([1, 2], GREEDY)


def test_timeouts_end_what_waits_and_what_runs() -> None:
    now = [0.0]
    core = make_core(FakeProgram(hashed_logits()), seqs=2, clock=lambda: now[0])
    long = SamplingParams(max_tokens=50, temperature=0, ignore_eos=True)
    asked = [submit(core, [1, i], long, timeout_s=t) for i, t in enumerate((5.0, None, 3.0, 100.0))]
    while core.busy:
        core.step()
        now[0] += 1.0
    ends = [(one.choices[0].finish, len(one.choices[0].token_ids)) for one in asked]
    assert ends[0][0] == "abort" and 3 <= ends[0][1] <= 5 and "timeout after 5 s" in str(asked[0].choices[0].stop_reason)
    assert ends[1] == ("length", 50) and ends[2] == ("abort", 0) and ends[3][0] == "length"
    assert core.metrics.counts["timeouts"] == 2


def test_nan_from_one_prompt_spares_a_batch() -> None:
    """QN-03: one row of four is NaN."""
    good = hashed_logits()

    def logits(history: list[int]) -> np.ndarray:
        return np.full(VOCAB, np.nan, np.float32) if history[0] == 66 and len(history) == 5 else good(history)

    core = make_core(FakeProgram(logits))
    asked = [submit(core, [h, 2], GREEDY) for h in (1, 66, 3, 4)]
    run(core, *asked)
    assert [one.choices[0].finish for one in asked] == ["length", "error", "length", "length"]
    assert [asked[i].choices[0].token_ids for i in (0, 2, 3)] == [t for h in (1, 3, 4) for t in alone([h, 2], GREEDY)]
    assert asked[1].choices[0].token_ids[-1] != EOS and len(asked[1].choices[0].token_ids) == 3
