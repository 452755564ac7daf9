"""The decode loop against a fake backend: same words in any schedule, ends, limits, failures, blocks."""

from __future__ import annotations

import numpy as np
import pytest
from tests.engine.fakes import EOS, VOCAB, FakeProgram, byte_text, hashed_logits, scripted

from ridgeline.engine.batch import run_batch
from ridgeline.engine.blocks import BlockPool
from ridgeline.engine.sequence import Limits, Sequence, admit, ban
from ridgeline.errors import ContextLengthError, UserError
from ridgeline.graph.caches import cache_groups
from ridgeline.types import SamplingParams

LIMITS = Limits(max_model_len=64, vocab=VOCAB, stop_ids=frozenset({EOS}))


def sequences(prompts: list[list[int]], params: SamplingParams | list[SamplingParams], limits: Limits = LIMITS) -> list[Sequence]:
    each = params if isinstance(params, list) else [params] * len(prompts)
    pairs = enumerate(zip(prompts, each, strict=True))
    return [s for i, (p, q) in pairs for s in admit(i, p, q, limits, [byte_text(q) for _ in range(q.n)])]


def run(program: FakeProgram, seqs: list[Sequence], *, chunk: int = 16, max_num_seqs: int = 8) -> list[list[int]]:
    for _ in run_batch(program, seqs, vocab=VOCAB, chunk=chunk, max_num_seqs=max_num_seqs):
        pass
    assert all(s.finish is not None for s in seqs)
    return [s.generated for s in seqs]


PROMPTS = [list(range(1, n)) for n in (2, 5, 18, 33, 7)]
MIXED = [
    SamplingParams(max_tokens=9, temperature=0),
    SamplingParams(max_tokens=12, temperature=1.0, seed=5),
    SamplingParams(max_tokens=7, temperature=0.8, seed=42, top_k=20, n=3),
    SamplingParams(max_tokens=11, temperature=1.3, seed=-1, frequency_penalty=0.5),
    SamplingParams(max_tokens=4, temperature=0.8, seed=42, min_tokens=4),
]


@pytest.mark.parametrize("windows", [(None,), (8,), (None, 8)])
@pytest.mark.parametrize(("chunk", "seqs", "blocks"), [(1, 1, 16), (3, 2, 20), (16, 8, 64), (512, 8, 200), (7, 8, 17)])
def test_words_do_not_depend_on_the_schedule(windows: tuple[int | None, ...], chunk: int, seqs: int, blocks: int) -> None:
    alone: list[list[int]] = []
    for prompt, params in zip(PROMPTS, MIXED, strict=True):
        program = FakeProgram(hashed_logits(), windows=windows, blocks=(200,) * len(windows))
        alone += run(program, sequences([prompt], params), chunk=512)
    program = FakeProgram(hashed_logits(), windows=windows, blocks=(blocks,) * len(windows))
    assert run(program, sequences(PROMPTS, MIXED), chunk=chunk, max_num_seqs=seqs) == alone
    assert run(program, sequences(PROMPTS[::-1], MIXED[::-1]), chunk=chunk, max_num_seqs=seqs)[-1] == alone[0]
    assert all(step.rows <= chunk and len(step.spans) <= seqs for step in program.steps)


def test_n_choices_differ_repeat_as_a_set_and_share_no_block() -> None:
    params = SamplingParams(n=4, max_tokens=8, seed=3)
    program = FakeProgram(hashed_logits())
    first, again = run(program, sequences([[1, 2, 3]], params)), run(FakeProgram(hashed_logits()), sequences([[1, 2, 3]], params))
    assert first == again and len({tuple(t) for t in first}) == 4
    used = [set(t.tolist()) for t in program.steps[-1].tables[0]]
    assert len(set.union(*used)) == sum(map(len, used))


def test_absent_seeds_are_drawn_at_admission_and_differ() -> None:
    seqs = sequences([[1, 2, 3]] * 20, SamplingParams(max_tokens=6))
    assert len({s.seed for s in seqs}) == 20
    assert len({tuple(t) for t in run(FakeProgram(hashed_logits()), seqs)}) > 10


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 - 1])
def test_extreme_seeds_repeat(seed: int) -> None:
    params = SamplingParams(max_tokens=5, seed=seed)
    assert run(FakeProgram(hashed_logits()), sequences([[1]], params)) == run(FakeProgram(hashed_logits()), sequences([[1]], params))


def test_eos_is_kept_in_ids_and_not_in_text() -> None:
    seqs = sequences([[1, 2]], SamplingParams(max_tokens=20, temperature=0))
    assert run(FakeProgram(scripted(b"hi", 2)), seqs) == [[*b"hi", EOS]]
    assert (seqs[0].finish, seqs[0].stop_reason, seqs[0].text) == ("stop", None, "hi")


def test_ignore_eos_goes_on_to_the_length() -> None:
    seqs = sequences([[1, 2]], SamplingParams(max_tokens=5, temperature=0, ignore_eos=True))
    assert run(FakeProgram(scripted(b"hi", 2)), seqs) == [[*b"hi", EOS, EOS, EOS]]
    assert seqs[0].finish == "length"


def test_min_tokens_bans_every_end_until_then() -> None:
    params = SamplingParams(max_tokens=9, temperature=0, min_tokens=5, stop_token_ids=(104,))
    seqs = sequences([[1, 2]], params)
    made = run(FakeProgram(scripted(b"hi", 2)), seqs)[0]
    assert len(made) == 6 and made[-1] == EOS and not {EOS, 104} & set(made[:5])


def test_stop_token_id_is_named() -> None:
    seqs = sequences([[1, 2]], SamplingParams(max_tokens=9, temperature=0, stop_token_ids=(ord("c"),)))
    assert run(FakeProgram(scripted(b"abcd", 2)), seqs) == [list(b"abc")]
    assert (seqs[0].finish, seqs[0].stop_reason, seqs[0].text) == ("stop", ord("c"), "ab")


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [
        (("own fox",), "The quick br", "own fox"),
        (("never",), "The quick brown fox jumps", None),
        (("jumps!",), "The quick brown fox jumps", None),
    ],
)
def test_stop_strings_cut_and_held_text_is_flushed(stop: tuple[str, ...], text: str, reason: str | None) -> None:
    seqs, shown = sequences([[1]], SamplingParams(max_tokens=40, temperature=0, stop=stop)), ""
    for seq in run_batch(FakeProgram(scripted(b"The quick brown fox jumps", 1)), seqs, vocab=VOCAB, chunk=8, max_num_seqs=1):
        shown += seq.delta
    assert (shown, seqs[0].text, seqs[0].finish, seqs[0].stop_reason) == (text, text, "stop", reason)


def test_half_a_character_at_the_limit_streams_what_the_whole_decode_says() -> None:
    answer, shown = "é🫠".encode(), ""
    seqs = sequences([[1]], SamplingParams(max_tokens=4, temperature=0))
    for seq in run_batch(FakeProgram(scripted(answer, 1)), seqs, vocab=VOCAB, chunk=8, max_num_seqs=1):
        shown += seq.delta
    assert shown == seqs[0].text == answer[:4].decode("utf8", "replace") and seqs[0].finish == "length"


def test_model_length_ends_a_sequence_and_is_fully_usable() -> None:
    seqs = sequences([list(range(60))], SamplingParams(max_tokens=None, temperature=0, ignore_eos=True))
    assert len(run(FakeProgram(hashed_logits()), seqs)[0]) == 4 and seqs[0].finish == "length"


def test_a_row_of_nan_fails_alone() -> None:
    good = hashed_logits()

    def logits(history: list[int]) -> np.ndarray:
        return np.full(VOCAB, np.nan, np.float32) if history[0] == 9 and len(history) > 4 else good(history)

    params = SamplingParams(max_tokens=6, temperature=0)
    seqs = sequences([[1, 2], [9, 2], [3, 4]], params)
    run(FakeProgram(logits), seqs)
    assert [s.finish for s in seqs] == ["length", "error", "length"] and "NaN" in str(seqs[1].stop_reason)
    assert [seqs[0].generated, seqs[2].generated] == run(FakeProgram(good), sequences([[1, 2], [3, 4]], params))


def test_logprobs_hold_the_drawn_token_and_the_best() -> None:
    seqs = sequences([[1, 2]], SamplingParams(max_tokens=3, temperature=2.0, seed=1, logprobs=2))
    made = run(FakeProgram(hashed_logits()), seqs)[0]
    out = seqs[0].output()
    assert out.logprobs is not None and out.cumulative_logprob is not None
    assert all(t in d and 2 <= len(d) <= 3 for t, d in zip(made, out.logprobs, strict=True))
    assert out.cumulative_logprob == pytest.approx(sum(d[t] for t, d in zip(made, out.logprobs, strict=True)))


def test_blocks_all_come_back_and_a_window_bounds_what_is_held() -> None:
    program = FakeProgram(hashed_logits(), windows=(None, 8), blocks=(32, 12))
    pool = BlockPool(cache_groups(program.graph.caches), program.plan.blocks, program.plan.block_size, 4)
    seq = sequences([list(range(1, 40))], SamplingParams(max_tokens=20))[0]
    assert pool.reserve(seq)
    most = 0
    for past in range(0, 56, 4):
        seq.past = past
        pool.grow(seq, past + 4)
        most = max(most, 12 - pool.free()[1])
    assert pool.free()[0] == 32 - 14 and most <= 4
    pool.release(seq)
    assert pool.free() == (32, 12) and pool.reserve(seq)


@pytest.mark.parametrize(
    ("prompt", "params", "error", "words"),
    [
        ([], {}, UserError, ("no tokens",)),
        (list(range(64)), {}, ContextLengthError, ("64", "--max-model-len")),
        (list(range(100)), {}, ContextLengthError, ("100", "64")),
        ([1, VOCAB], {}, UserError, ("260", "259")),
        ([1, -1], {}, UserError, ("-1",)),
        ([1], {"stop_token_ids": (10**9,)}, UserError, ("stop_token_ids", "1000000000")),
        ([1], {"logit_bias": ((999999, 1.0),)}, UserError, ("logit_bias", "999999")),
        ([1], {"logprobs": 10**6}, UserError, ("logprobs", "1000000")),
        ([1], {"min_tokens": 20, "max_tokens": 3}, UserError, ("min_tokens", "20", "3")),
    ],
)
def test_impossible_requests_are_refused_with_numbers(
    prompt: list[int], params: dict[str, object], error: type[UserError], words: tuple[str, ...]
) -> None:
    with pytest.raises(error) as caught:
        sequences([prompt], SamplingParams(**params))  # type: ignore[arg-type]
    assert all(w in str(caught.value) for w in words) and caught.value.field is not None


def test_ban_clears_exactly_those_bits() -> None:
    bits = np.unpackbits(ban(frozenset({0, 33, 258}), VOCAB).view(np.uint8), bitorder="little")[:VOCAB]
    assert np.flatnonzero(bits == 0).tolist() == [0, 33, 258]
