"""The engine's loop against a fake backend: same words in any schedule, ends, limits, failures, blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.engine.fakes import EOS, VOCAB, FakeProgram, hashed_logits, scripted
from tests.engine.running import LIMITS, WORDS, alone, make_core, run, submit

from ridgeline.engine.request import EngineRequest, RequestState, prepare
from ridgeline.errors import ContextLengthError, UserError
from ridgeline.kv.manager import CachePolicy
from ridgeline.scheduler.state import Faults
from ridgeline.types import SamplingParams

PROMPTS = [list(range(1, n)) for n in (2, 5, 18, 33, 7)]
MIXED = [
    SamplingParams(max_tokens=9, temperature=0),
    SamplingParams(max_tokens=12, temperature=1.0, seed=5),
    SamplingParams(max_tokens=7, temperature=0.8, seed=42, top_k=20, n=3),
    SamplingParams(max_tokens=11, temperature=1.3, seed=-1, frequency_penalty=0.5),
    SamplingParams(max_tokens=4, temperature=0.8, seed=42, min_tokens=4),
]


@pytest.mark.parametrize("policy", ["radix", "hash", "off"])
@pytest.mark.parametrize("windows", [(None,), (8,), (None, 8)])
@pytest.mark.parametrize(("chunk", "seqs", "blocks"), [(1, 1, 16), (3, 2, 20), (16, 8, 64), (512, 8, 200), (7, 8, 17)])
def test_words_do_not_depend_on_the_schedule(
    windows: tuple[int | None, ...], chunk: int, seqs: int, blocks: int, policy: CachePolicy
) -> None:
    expected = [t for p, q in zip(PROMPTS, MIXED, strict=True) for t in alone(p, q, windows)]
    program = FakeProgram(hashed_logits(), windows=windows, blocks=(blocks,) * len(windows))
    core = make_core(program, chunk=chunk, seqs=seqs, policy=policy)
    both = list(zip(PROMPTS, MIXED, strict=True))
    assert run(core, *[submit(core, p, q) for p, q in both]) == expected
    assert run(core, *[submit(core, p, q) for p, q in both[::-1]])[-1] == expected[0]
    assert all(step.rows <= max(chunk, seqs) and len(step.spans) <= seqs for step in program.steps)


def test_n_choices_differ_repeat_as_a_set_and_share_the_prompt() -> None:
    params, prompt = SamplingParams(n=4, max_tokens=8, seed=3), list(range(20))
    core = make_core(FakeProgram(hashed_logits()), policy="off")
    first = run(core, submit(core, prompt, params))
    assert first == run(core, submit(core, prompt, params)) == alone(prompt, params) and len({tuple(t) for t in first}) == 4
    assert core.metrics.counts["computed_prompt_tokens"] == 40 and core.state.counts["forks"] == 6


def test_absent_seeds_are_drawn_at_admission_and_differ() -> None:
    core = make_core(FakeProgram(hashed_logits()))
    asked = [submit(core, [1, 2, 3], SamplingParams(max_tokens=6)) for _ in range(20)]
    assert len({one.choices[0].seed for one in asked}) == 20
    assert len({tuple(t) for t in run(core, *asked)}) > 10


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 - 1])
def test_extreme_seeds_repeat(seed: int) -> None:
    params = SamplingParams(max_tokens=5, seed=seed)
    assert alone([1], params) == alone([1], params)


def say(text: bytes, prompt: list[int], params: SamplingParams) -> tuple[RequestState, str]:
    """Greedy decoding says `text`: the request at its end, and its deltas joined."""
    core = make_core(FakeProgram(scripted(text, len(prompt))), chunk=8, seqs=1)
    asked, shown = submit(core, prompt, params), ""
    while core.busy:
        for choice in core.step():
            shown += choice.delta
    return asked, shown


def test_eos_is_kept_in_ids_and_not_in_text() -> None:
    choice = say(b"hi", [1, 2], SamplingParams(max_tokens=20, temperature=0))[0].choices[0]
    assert choice.token_ids == [*b"hi", EOS]
    assert (choice.finish, choice.stop_reason, choice.text) == ("stop", None, "hi")


def test_ignore_eos_goes_on_to_the_length() -> None:
    choice = say(b"hi", [1, 2], SamplingParams(max_tokens=5, temperature=0, ignore_eos=True))[0].choices[0]
    assert choice.token_ids == [*b"hi", EOS, EOS, EOS] and choice.finish == "length"


def test_min_tokens_bans_every_end_until_then() -> None:
    params = SamplingParams(max_tokens=9, temperature=0, min_tokens=5, stop_token_ids=(104,))
    made = say(b"hi", [1, 2], params)[0].choices[0].token_ids
    assert len(made) == 6 and made[-1] == EOS and not {EOS, 104} & set(made[:5])


def test_stop_token_id_is_named() -> None:
    choice = say(b"abcd", [1, 2], SamplingParams(max_tokens=9, temperature=0, stop_token_ids=(ord("c"),)))[0].choices[0]
    assert choice.token_ids == list(b"abc") and (choice.finish, choice.stop_reason, choice.text) == ("stop", ord("c"), "ab")


@pytest.mark.parametrize(
    ("stop", "include", "text", "reason"),
    [
        (("own fox",), False, "The quick br", "own fox"),
        (("own fox",), True, "The quick brown fox", "own fox"),
        (("never",), False, "The quick brown fox jumps", None),
        (("jumps!",), False, "The quick brown fox jumps", None),
    ],
)
def test_stop_strings_cut_and_held_text_is_flushed(stop: tuple[str, ...], include: bool, text: str, reason: str | None) -> None:
    params = SamplingParams(max_tokens=40, temperature=0, stop=stop, include_stop_str_in_output=include)
    asked, shown = say(b"The quick brown fox jumps", [1], params)
    choice = asked.choices[0]
    assert (shown, choice.text, choice.finish, choice.stop_reason) == (text, text, "stop", reason)


def test_half_a_character_at_the_limit_streams_what_the_whole_decode_says() -> None:
    answer = "é🫠".encode()
    asked, shown = say(answer, [1], SamplingParams(max_tokens=4, temperature=0))
    assert shown == asked.choices[0].text == answer[:4].decode("utf8", "replace") and asked.choices[0].finish == "length"


def test_without_detokenize_there_is_no_text() -> None:
    asked, shown = say(b"hello", [1], SamplingParams(max_tokens=9, temperature=0, detokenize=False))
    assert shown == asked.choices[0].text == "" and asked.choices[0].token_ids == [*b"hello", EOS]


def test_model_length_ends_a_sequence_and_is_fully_usable() -> None:
    core = make_core(FakeProgram(hashed_logits()))
    asked = submit(core, list(range(60)), SamplingParams(max_tokens=None, temperature=0, ignore_eos=True))
    assert len(run(core, asked)[0]) == 4 and asked.choices[0].finish == "length"


def test_a_row_of_nan_fails_alone() -> None:
    good = hashed_logits()

    def logits(history: list[int]) -> np.ndarray:
        return np.full(VOCAB, np.nan, np.float32) if history[0] == 9 and len(history) > 4 else good(history)

    params = SamplingParams(max_tokens=6, temperature=0)
    core = make_core(FakeProgram(logits))
    asked = [submit(core, p, params) for p in ([1, 2], [9, 2], [3, 4])]
    made = run(core, *asked)
    assert [one.choices[0].finish for one in asked] == ["length", "error", "length"] and "NaN" in str(asked[1].choices[0].stop_reason)
    assert [made[0], made[2]] == alone([1, 2], params) + alone([3, 4], params)
    assert core.metrics.counts["finished_error"] == 1


def test_logprobs_hold_the_drawn_token_and_the_best() -> None:
    core = make_core(FakeProgram(hashed_logits()))
    asked = submit(core, [1, 2], SamplingParams(max_tokens=3, temperature=2.0, seed=1, logprobs=2))
    made = run(core, asked)[0]
    out = asked.output().outputs[0]
    assert out.logprobs is not None and out.cumulative_logprob is not None
    assert all(t in d and 2 <= len(d) <= 3 for t, d in zip(made, out.logprobs, strict=True))
    assert out.cumulative_logprob == pytest.approx(sum(d[t] for t, d in zip(made, out.logprobs, strict=True)))


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
        ([1], {"allowed_token_ids": (VOCAB,)}, UserError, ("allowed_token_ids", "260")),
        ([1], {"logprobs": 10**6}, UserError, ("logprobs", "1000000")),
        ([1], {"prompt_logprobs": 10**6}, UserError, ("prompt_logprobs", "1000000")),
        ([1], {"min_tokens": 20, "max_tokens": 3}, UserError, ("min_tokens", "20", "3")),
    ],
)
def test_refusals_name_value_and_limit(prompt: list[int], params: dict[str, Any], error: type[UserError], words: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        prepare(EngineRequest("r", prompt, SamplingParams(**params)), LIMITS, WORDS)
    assert all(w in str(caught.value) for w in words)


def test_preemption_and_eviction_change_no_word() -> None:
    expected = [t for p, q in zip(PROMPTS, MIXED, strict=True) for t in alone(p, q)]
    for faults in (Faults(preempt_every=2), Faults(evict_every=1), Faults(3, 2)):
        core = make_core(FakeProgram(hashed_logits()), chunk=8)
        core.dial(faults)
        assert run(core, *[submit(core, p, q) for p, q in zip(PROMPTS, MIXED, strict=True)]) == expected
        assert core.state.counts["preemptions"] > 0 or not faults.preempt_every
