"""A draft model: same words, its guesses agree where it is the same model, its cache holds and gives back what it should."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from tests.engine.fakes import VOCAB, FakeProgram, hashed_logits
from tests.engine.running import make_core, run, submit
from tests.spec.test_rollback import KINDS, LIMITS, alone, ask, program, same

from ridgeline.engine.core import EngineCore
from ridgeline.engine.drafting import check_vocabulary
from ridgeline.engine.speculate import Speculator
from ridgeline.errors import UserError
from ridgeline.graph.caches import cache_groups
from ridgeline.graph.step import Step
from ridgeline.kv.manager import KvCache
from ridgeline.scheduler.state import Faults
from ridgeline.spec.draft import DraftProposer
from ridgeline.text.from_gguf import tokenizer_from_gguf
from ridgeline.types import SamplingParams


def draft_of(noise: float, blocks: int = 900, windows: tuple[int | None, ...] = (None,)) -> FakeProgram:
    """The target's logits, and so much of somebody else's."""
    target, other = program(), hashed_logits(VOCAB)

    def logits(history: list[int]) -> np.ndarray:
        return (target._logits_of(history) + np.float32(noise) * other([*history, 7])).astype(np.float32)

    return FakeProgram(logits, blocks=(blocks,) * len(windows), windows=windows)


def drafting(core: EngineCore, draft: FakeProgram, most: int = 4, longest: int = 300, chunk: int = 512) -> DraftProposer:
    windows = [g.window for g in cache_groups(draft.graph.caches)]
    kv = KvCache(windows, draft.plan.blocks, draft.plan.block_size, "radix")
    proposer = DraftProposer(draft, kv, VOCAB, longest, chunk)
    core.speculator = Speculator(proposer, most)
    return proposer


@pytest.mark.parametrize(
    ("noise", "windows", "blocks", "chunk", "faults"),
    [(0.0, (None,), 900, 512, Faults()), (0.3, (None, 6), 900, 9, Faults(preempt_every=7)), (1.0, (8,), 60, 512, Faults(5, 4))],
)
def test_every_kind_at_once_equals_alone(noise: float, windows: tuple[int | None, ...], blocks: int, chunk: int, faults: Faults) -> None:
    core = make_core(program(), chunk=40, seqs=12, limits=LIMITS)
    core.dial(faults)
    if windows == (8,):
        windows = (None, 8)
    proposer = drafting(core, draft_of(noise, blocks, windows), chunk=chunk)
    for _ in range(2):
        asked = [(kind, ask(core, kind)) for kind in KINDS]
        while core.busy:
            core.step()
            core.state.kv.check()
            proposer.kv.check()
        for kind, one in asked:
            assert all(same(a, b) for a, b in zip(one.output().outputs, alone(kind).outputs, strict=True)), kind
    assert core.speculator is not None and core.speculator.fault is None
    assert all(used == 0 for _, _, used in proposer.kv.usage()), "the draft's blocks come back"
    counts = core.metrics.counts
    share = counts["spec_decode_num_accepted_tokens"] / counts["spec_decode_num_draft_tokens"]
    assert share > 0.95 if noise == 0.0 else 0.0 < share < 0.95


def test_the_same_model_is_always_right_at_any_temperature() -> None:
    """It draws with the target's noise, penalties, masks and positions: a twin's guess is the target's draw."""
    for kind in ("sampled", "penalties", "bad words", "schema", "an end"):
        core = make_core(program(), limits=LIMITS)
        proposer = drafting(core, draft_of(0.0))
        asked = ask(core, kind)
        run(core, asked)
        assert same(asked.output().outputs[0], alone(kind).outputs[0])
        counts: Counter[str] = core.metrics.counts
        assert counts["spec_decode_num_accepted_tokens"] == counts["spec_decode_num_draft_tokens"] > 3, kind
        assert proposer.kv.counts["copies_on_write"] == 0


def test_a_draft_with_no_room_or_no_length_left_guesses_nothing() -> None:
    core = make_core(program(), limits=LIMITS)
    drafting(core, draft_of(0.0), longest=30)
    asked = ask(core, "schema")
    run(core, asked)
    assert same(asked.output().outputs[0], alone("schema").outputs[0])
    assert 0 < core.metrics.counts["spec_decode_num_draft_tokens"] < 30
    core = make_core(program(), limits=LIMITS)
    drafting(core, draft_of(0.0, blocks=3))
    asked = ask(core, "greedy")
    run(core, asked)
    assert core.metrics.counts["spec_decode_num_draft_tokens"] == 0 and same(asked.output().outputs[0], alone("greedy").outputs[0])


def test_a_draft_that_fails_ends_the_guessing_and_nothing_else() -> None:
    core = make_core(program(), limits=LIMITS)
    draft = draft_of(0.0)
    drafting(core, draft)
    forward, left = draft.forward, [7]

    def failing(step: Step) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("broken")
        forward(step)

    draft.forward = failing  # type: ignore[method-assign]
    asked = [(kind, ask(core, kind)) for kind in KINDS]
    run(core, *[one for _, one in asked])
    assert all(same(a, b) for k, one in asked for a, b in zip(one.output().outputs, alone(k).outputs, strict=True))
    assert core.speculator is not None and core.speculator.fault == "RuntimeError: broken"
    assert core.metrics.counts["speculation_faults"] == 1
    assert core.metrics.counts["engine_restarts"] == core.metrics.counts["backend_faults"] == 0


@pytest.mark.parametrize(("row_s", "prompt", "most", "pays"), [(0.01, 12, 24, False), (0.0005, 12, 24, True), (0.001, 200, 6, False)])
def test_guesses_that_do_not_pay_take_a_fiftieth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, row_s: float, prompt: int, most: int, pays: bool
) -> None:
    """Virtual time: a row of the draft takes as long as a step of the target, or a twentieth, or a tenth where the prompt is too long for a
    short answer."""
    now, spent = [0.0], [0.0]
    core = make_core(program(), limits=LIMITS, clock=lambda: now[0])
    monkeypatch.setattr("ridgeline.engine.speculate.perf_counter", lambda: now[0])
    draft = draft_of(0.0)
    core.speculator = Speculator(
        DraftProposer(draft, KvCache([None], draft.plan.blocks, 4, "radix"), VOCAB, 300),
        4,
        lambda step: 0.02,
        guess=lambda step: 2 * row_s * step.rows,
    )
    for program_, seconds in ((core.program, lambda step: 0.01), (draft, lambda step: row_s * step.rows)):

        def timed(step: Step, forward=program_.forward, seconds=seconds, mine=program_ is draft) -> None:  # type: ignore[no-untyped-def]
            forward(step)
            now[0] += seconds(step)
            spent[0] += seconds(step) * mine

        program_.forward = timed  # type: ignore[method-assign]
    for i in range(60):
        run(core, submit(core, [97 + i % 20] * prompt, SamplingParams(max_tokens=most, temperature=1.0, seed=i, ignore_eos=True)))
    accepted, generated = core.metrics.counts["spec_decode_num_accepted_tokens"], core.metrics.counts["generation_tokens"]
    assert core.speculator.fault is None and generated == 60 * most
    if pays:
        assert accepted > 0.6 * generated
    else:
        assert spent[0] <= 0.021 * now[0] and accepted < 0.02 * generated and (spent[0] > 0.0 or prompt == 200)


def test_another_vocabulary_is_refused_with_the_first_difference() -> None:
    from tests.cli.tiny_gguf import metadata

    one, other = metadata(), metadata()
    check_vocabulary(tokenizer_from_gguf(one), tokenizer_from_gguf(other), "a", "b")
    tokens = list(other["tokenizer.ggml.tokens"])
    tokens[10] = "xyz"
    other["tokenizer.ggml.tokens"] = tokens
    with pytest.raises(UserError, match=r"another vocabulary than a: id 10 is 'xyz' instead of"):
        check_vocabulary(tokenizer_from_gguf(one), tokenizer_from_gguf(other), "a", "b")
