"""The draws of one step: which rows are sampled for whom, and what comes back to each choice. A row that fails ends its own choice only.

Knows the order of logits rows. Refuses to know what a draw is (`sampling/`) and what an ended sequence means for others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat

import numpy as np

from ridgeline.backends.base import Program
from ridgeline.engine.choice import Choice
from ridgeline.engine.request import RequestState
from ridgeline.graph.step import Step
from ridgeline.sampling.plan import Sampled, SamplePlan, SampleRow, TopLogprobs
from ridgeline.scheduler.state import UNDRAWN, Draw, SchedulerState
from ridgeline.types import FinishReason

NOT_FINITE = "the logits hold NaN or infinity, or no token is allowed"


# (program, draws, their rows, vocab) -> the rows again, with what rows with guesses give already decided (`SampleRow.given`).
Rule = Callable[[Program, Sequence[Draw], list[SampleRow], int], list[SampleRow]]


@dataclass(slots=True)
class StepResult:
    """tokens: one per `state.draws`, -1 for a choice that failed, UNDRAWN behind a draft that was not what was drawn; finishes: by sequence
    id; choices: those that drew, in that order; gaps: one per token, seconds since the token before; since the arrival, negative, for a
    request's first; None for another sample's, and for what came with the token before. accepted: drafts, by sequence id."""

    tokens: list[int]
    finishes: dict[int, FinishReason] = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)
    gaps: list[float | None] = field(default_factory=list)
    accepted: dict[int, int] = field(default_factory=dict)


def _gap(choice: Choice, now: float) -> float | None:
    if choice.last_at:
        return now - choice.last_at
    return None if choice.times.first_token else choice.times.arrival - now


def sample_step(
    program: Program,
    step: Step,
    state: SchedulerState,
    choices: Mapping[int, Choice],
    requests: Mapping[str, RequestState],
    vocab: int,
    now: float,
    rule: Rule | None = None,
) -> StepResult:
    """Sample what the step's logits are for. `now`: seconds, for the times of the tokens; rule: decides on guesses, None: coupled."""
    draws = state.draws
    result = StepResult([UNDRAWN] * len(draws))
    rows, owners, broken = list[SampleRow](), list[tuple[int, Draw, Choice]](), set[int]()
    for i, draw in enumerate(draws):
        choice = choices[draw.seq]
        try:
            if draw.seq not in broken:
                rows.append(choice.row(draw.row, draw.ahead))
                owners.append((i, draw, choice))
        except Exception as fault:  # a grammar's; behind a draft it is left to the step that comes to that place
            broken.add(draw.seq)
            if draw.ahead == 0:
                _fail(result, i, draw, choice, f"{type(fault).__name__}: {fault}")
        if draw.ahead == 0:
            result.choices.append(choice)
    if rule is not None and state.record.drafts:
        rows = rule(program, [draw for _, draw, _ in owners], rows, vocab)
    owed = _prompt_rows(step, state, choices, requests, rows)
    if not rows:
        return result
    drawn = _draw(program, rows, vocab)
    _hand_out(result, state, owners, drawn, now)
    at = len(owners)
    tokens, failed, logprobs = drawn.tokens.tolist(), drawn.failed.tolist(), drawn.logprobs.tolist()
    for asked, count in owed:
        _give_prompt(state, asked, failed[at : at + count], tokens[at : at + count], logprobs[at : at + count], drawn.top[at : at + count])
        at += count
    return result


def _hand_out(result: StepResult, state: SchedulerState, owners: list[tuple[int, Draw, Choice]], drawn: Sampled, now: float) -> None:
    """Each choice takes what its rows drew, up to the first draw that is not the draft after it, or its end."""
    over = set[int]()  # sequences that take no more tokens of this step
    tokens, failed, logprobs = drawn.tokens.tolist(), drawn.failed.tolist(), drawn.logprobs.tolist()
    for j, (i, draw, choice) in enumerate(owners):
        if draw.seq in over:
            continue
        over.add(draw.seq)
        if failed[j]:
            _fail(result, i, draw, choice, NOT_FINITE)
            continue
        gap = _gap(choice, now) if draw.ahead == 0 else None
        try:
            choice.accept(tokens[j], logprobs[j], drawn.top[j], now, more=draw.ahead > 0)
        except Exception as fault:  # a grammar's, or the detokenizer's
            _fail(result, i, draw, choice, f"{type(fault).__name__}: {fault}")
            continue
        result.tokens[i] = tokens[j]
        result.gaps.append(gap)
        seq = state.sequences[draw.seq]
        if draw.ahead < seq.drafted:
            hit = tokens[j] == int(seq.drafts[draw.ahead])
            result.accepted[draw.seq] = draw.ahead + int(hit)
            if hit and choice.finish is None:
                over.remove(draw.seq)
        if choice.finish is not None:
            result.finishes[draw.seq] = choice.finish


def _fail(result: StepResult, i: int, draw: Draw, choice: Choice, why: str) -> None:
    """End a choice; but behind accepted drafts, which are good, leave it to the next step to fail at the same place."""
    if draw.ahead and len(choice.new_ids) == draw.ahead:
        return
    choice.close("error", why, keep=draw.ahead > 0)
    result.tokens[i] = -1
    result.finishes[draw.seq] = "error"


def _draw(program: Program, rows: list[SampleRow], vocab: int) -> Sampled:
    """One native call; if it refuses the plan, one per row, so that only the row at fault fails."""
    try:
        return program.sample(SamplePlan(tuple(rows), vocab))
    except Exception:
        each = [_draw_one(program, row, vocab) for row in rows]
        tokens, failed, logprobs = (np.concatenate([getattr(s, name) for s in each]) for name in ("tokens", "failed", "logprobs"))
        return Sampled(tokens, failed, logprobs, tuple(t for s in each for t in s.top))


def _draw_one(program: Program, row: SampleRow, vocab: int) -> Sampled:
    try:
        return program.sample(SamplePlan((row,), vocab))
    except Exception:
        return Sampled(np.full(1, -1, np.int32), np.ones(1, np.bool_), np.full(1, np.nan, np.float32), (None,))


def _prompt_rows(
    step: Step, state: SchedulerState, choices: Mapping[int, Choice], requests: Mapping[str, RequestState], rows: list[SampleRow]
) -> list[tuple[RequestState, int]]:
    """Add a row for each prompt token whose log-probability is owed and was computed now; who gets how many, in order."""
    owed, first = list[tuple[RequestState, int]](), 0
    for span in step.spans:
        seq = state.sequences[span.seq]
        if seq.request.prompt_rows and seq.scored < seq.prompt_len and span.want:
            asked = requests[choices[span.seq].request_id]
            known, end = asked.prompt_logprobs or [], span.past + span.new
            count = min(end + 1, seq.prompt_len) - len(known)
            at = first + span.want - (end + 1 - len(known))
            given = asked.prompt_ids[len(known) : len(known) + count]
            rows += [
                SampleRow(at + j, given=token, logprobs=k)
                for j, (token, k) in enumerate(zip(given, repeat(asked.request.params.prompt_logprobs), strict=False))
            ]
            owed.append((asked, count))
        first += span.want
    return owed


def _give_prompt(
    state: SchedulerState,
    asked: RequestState,
    failed: list[bool],
    tokens: list[int],
    logprobs: list[float],
    top: tuple[TopLogprobs | None, ...],
) -> None:
    """Log-probabilities of prompt tokens to their request; a row without numbers fails the whole request."""
    if any(failed):
        for choice in asked.choices:
            if choice.finish is None and choice.sequence is not None:
                choice.close("error", NOT_FINITE)
                state.end(choice.sequence, "error")
        return
    found = asked.prompt_logprobs if asked.prompt_logprobs is not None else []
    for token, logprob, best in zip(tokens, logprobs, top, strict=True):
        listed = {} if best is None else dict(zip(best.ids.tolist(), best.values.tolist(), strict=True))
        found.append({token: logprob, **listed})
