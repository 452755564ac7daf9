"""Cases SP (sampling parameters) and LP (log-probabilities) at the engine: each kind, not only the instance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.engine.fakes import EOS, VOCAB, FakeProgram, LogitsOf, hashed_logits
from tests.engine.running import alone, make_core, run, submit

from ridgeline.errors import UserError
from ridgeline.scheduler.state import Faults
from ridgeline.types import SamplingParams

GREEDY = SamplingParams(max_tokens=8, temperature=0)


@pytest.mark.parametrize("settings", [{"temperature": t} for t in (1e-5, 1e-7, 1e-30, 5e-324)] + [{"top_p": 1e-9}, {"top_k": 1}])
def test_sp01_tiny_temperature_is_greedy(settings: dict[str, Any]) -> None:
    def steep(history: list[int]) -> np.ndarray:
        row = np.full(VOCAB, -60000, np.float32)
        row[5 + len(history) % 3], row[9] = 60000, 59999
        return row

    def answer(params: SamplingParams) -> list[list[int]]:
        core = make_core(FakeProgram(steep))
        return run(core, submit(core, [1, 2], params))

    assert answer(SamplingParams(max_tokens=8, seed=4, **settings)) == answer(GREEDY)
    assert alone([1, 2], SamplingParams(max_tokens=8, seed=4, **settings)) == alone([1, 2], GREEDY)


KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0, "logit_bias": ((104, -100.0), (3, 5.0))},
    {"temperature": 0.0, "allowed_token_ids": tuple(range(40, 60))},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.3, "frequency_penalty": 1.5, "presence_penalty": -1.0, "repetition_penalty": 1.4},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 2.0, "min_p": 0.1, "logprobs": 3},
    {"temperature": 0.9, "bad_words": ("a", "bc"), "min_tokens": 6, "stop_token_ids": tuple(range(10, 200, 7))},
]


def test_sp02_sp03_a_row_does_not_know_its_neighbours() -> None:
    """Greedy, banned, random, seeded and unseeded rows: alone, in any company, in any slot, after preemption, n of them."""
    asked = [(list(range(i + 1)), SamplingParams(max_tokens=9, seed=i, n=1 + i % 3, **kind)) for i, kind in enumerate(KINDS)]
    expected = [alone(prompt, params) for prompt, params in asked]
    rng = np.random.default_rng(0)
    for round_ in range(6):
        core = make_core(FakeProgram(hashed_logits(), blocks=(120,)), seqs=3 + 2 * round_)
        core.dial(Faults(preempt_every=3 * (round_ % 2)))
        noise = [submit(core, [9, i], SamplingParams(max_tokens=5)) for i in range(round_)]
        order = rng.permutation(len(asked))
        found = {int(i): submit(core, *asked[int(i)]) for i in order}
        run(core, *noise)
        assert all([c.token_ids for c in found[i].choices] == expected[i] for i in found)


def test_sp03_unseeded_requests_do_not_repeat_each_other() -> None:
    core = make_core(FakeProgram(hashed_logits()))
    made = run(core, *[submit(core, [1, 2, 3], SamplingParams(max_tokens=6)) for _ in range(20)])
    assert len({tuple(t) for t in made}) > 10


BAD: list[tuple[str, dict[str, Any]]] = [
    ("top_p", {"top_p": v}) for v in (-1, 0, 1.5, math.nan, math.inf)
] + [
    ("min_p", {"min_p": math.nan}), ("temperature", {"temperature": -1}), ("temperature", {"temperature": math.nan}),
    ("temperature", {"temperature": 1e308}), ("repetition_penalty", {"repetition_penalty": 0}), ("top_k", {"top_k": -2}), ("n", {"n": 0}),
    ("logit_bias", {"logit_bias": {999999: 1.0}}), ("logit_bias", {"logit_bias": {-1: 1.0}}), ("logit_bias", {"logit_bias": {"abc": 1.0}}),
    ("logit_bias", {"logit_bias": {1: 1e9}}), ("logit_bias", {"logit_bias": {1: math.nan}}), ("max_tokens", {"max_tokens": -5}),
    ("max_tokens", {"max_tokens": 0}), ("stop", {"stop": [""]}), ("stop", {"stop": ["x"] * 1000}), ("bad_words", {"bad_words": [""]}),
    ("stop_token_ids", {"stop_token_ids": [10**9]}), ("allowed_token_ids", {"allowed_token_ids": []}),
    ("allowed_token_ids", {"allowed_token_ids": [VOCAB]}), ("logprobs", {"logprobs": -1}), ("prompt_logprobs", {"prompt_logprobs": -1}),
    ("seed", {"seed": 2**64}), ("seed", {"seed": 1.5}), ("presence_penalty", {"presence_penalty": 3}), ("min_tokens", {"min_tokens": -1}),
    ("min_tokens", {"min_tokens": 99, "max_tokens": 3}), ("stop", {"stop": ["x"], "detokenize": False}),
]  # fmt: skip


@pytest.mark.parametrize(("field", "settings"), BAD)
def test_sp04_out_of_range_is_refused_by_name_and_harms_nobody(field: str, settings: dict[str, Any]) -> None:
    core = make_core(FakeProgram(hashed_logits()))
    healthy = submit(core, [1, 2], GREEDY)
    core.step()
    with pytest.raises(UserError, match=field) as caught:
        submit(core, [1, 2], SamplingParams(**settings))
    assert caught.value.field == field
    assert run(core, healthy) == alone([1, 2], GREEDY)


@pytest.mark.parametrize("top_k", [0, -1, 10**9])
def test_sp04_top_k_off_is_off(top_k: int) -> None:
    assert alone([1, 2], SamplingParams(max_tokens=6, seed=1, top_k=top_k)) == alone([1, 2], SamplingParams(max_tokens=6, seed=1))


@pytest.mark.parametrize("prompt", [list(range(8)), list(range(9)), [3]])
@pytest.mark.parametrize(("n", "slots"), [(4, 8), (64, 8), (2, 1), (5, 3)])
def test_sp06_n_choices_in_waves(prompt: list[int], n: int, slots: int) -> None:
    """More samples than slots, block-aligned prompts, one more sample than before: the first ones stay what they were."""
    params = SamplingParams(n=n, max_tokens=6, seed=2, stop_token_ids=tuple(range(20, 90)))
    core = make_core(FakeProgram(hashed_logits(), blocks=(40,)), seqs=slots)
    asked = submit(core, prompt, params)
    made = run(core, asked)
    out = asked.output()
    assert [c.index for c in out.outputs] == list(range(n)) and all(c.finish_reason in ("stop", "length") for c in out.outputs)
    assert made == alone(prompt, params) and len({tuple(t) for t in made}) > n // 2
    assert len({len(t) for t in made}) > 1 or n < 4, "some stop at once, some go on"
    more = SamplingParams(n=n + 1, max_tokens=6, seed=2, stop_token_ids=tuple(range(20, 90)))
    assert alone(prompt, more)[:n] == made


def test_sp06_abort_frees_all_children() -> None:
    core = make_core(FakeProgram(hashed_logits()), seqs=3)
    asked = submit(core, list(range(10)), SamplingParams(n=9, max_tokens=30, seed=1, ignore_eos=True), "many")
    for _ in range(5):
        core.step()
    core.abort("many")
    assert {c.finish for c in asked.choices} == {"abort"}
    ended = core.step()
    assert len(ended) == 9 and not core.busy and run(core, asked)


def raw_logprobs(logits: LogitsOf, history: list[int]) -> np.ndarray:
    row = logits(history).astype(np.float64)
    return row - row.max() - np.log(np.exp(row - row.max()).sum())


@pytest.mark.parametrize("k", [0, 1, 5, 20])
def test_lp01_the_drawn_token_is_always_there(k: int) -> None:
    """T = 3: the drawn token is mostly outside the best k."""
    core = make_core(FakeProgram(hashed_logits()))
    asked = submit(core, [1, 2], SamplingParams(max_tokens=9, temperature=3.0, seed=3, logprobs=k))
    made = run(core, asked)[0]
    listed = asked.output().outputs[0].logprobs
    assert listed is not None and len(listed) == 9
    outside = 0
    for i, (token, entry) in enumerate(zip(made, listed, strict=True)):
        raw = raw_logprobs(hashed_logits(), [1, 2, *made[:i]])
        best = np.argsort(-raw, kind="stable")[:k].tolist()
        assert next(iter(entry)) == token and set(entry) == {token, *best} and len(entry) == len({token, *best})
        assert all(abs(value - raw[t]) < 1e-5 for t, value in entry.items())
        outside += token not in best
    assert outside > 0 or k == 20


def test_lp03_values_do_not_depend_on_settings() -> None:
    """The same tokens under any settings and any k have the same log-probabilities, bit for bit, in mixed batches."""
    forced = SamplingParams(max_tokens=7, temperature=0, logprobs=1)
    core = make_core(FakeProgram(hashed_logits()))
    first = submit(core, [1, 2], forced)
    tokens = run(core, first)[0]
    expected = [d[t] for d, t in zip(first.output().outputs[0].logprobs or [], tokens, strict=True)]
    settings: list[dict[str, Any]] = [
        {"temperature": 0.0, "logprobs": 20}, {"temperature": 0.7, "top_p": 1e-6, "logprobs": 5}, {"top_k": 1, "logprobs": 0},
        {"temperature": 0.0, "logprobs": 3, "logit_bias": tuple((t, 100.0) for t in tokens[:0])},
    ]  # fmt: skip
    for one in settings:
        core = make_core(FakeProgram(hashed_logits()))
        asked = submit(core, [1, 2], SamplingParams(max_tokens=7, **one))
        others = [submit(core, [4, i], SamplingParams(max_tokens=7, logprobs=i % 2 or None)) for i in range(4)]
        assert run(core, asked, *others)[0] == tokens
        assert [d[t] for d, t in zip(asked.output().outputs[0].logprobs or [], tokens, strict=True)] == expected
    # Penalties and biases change what is drawn, not what is reported for it.
    core = make_core(FakeProgram(hashed_logits()))
    params = SamplingParams(max_tokens=7, temperature=0, logprobs=2, repetition_penalty=3.0, frequency_penalty=2.0, logit_bias=((50, 9.0),))
    asked = submit(core, [1, 2], params)
    made = run(core, asked)[0]
    for i, entry in enumerate(asked.output().outputs[0].logprobs or []):
        raw = raw_logprobs(hashed_logits(), [1, 2, *made[:i]])
        assert all(abs(value - raw[t]) < 1e-5 for t, value in entry.items())


PROMPT = [7, 3, 9, 1, 4, 8, 8, 2, 6, 5, 11, 13, 17, 19, 23, 29, 31, 37, 41]


@pytest.mark.parametrize("rows", [None, 1, 3])
@pytest.mark.parametrize("k", [0, 2])
def test_prompt_logprobs_are_exact_whatever_is_cached_and_however_it_is_cut(k: int, rows: int | None) -> None:
    params = SamplingParams(max_tokens=4, temperature=0, prompt_logprobs=k, n=2, seed=1)
    core = make_core(FakeProgram(hashed_logits(), blocks=(32,)), chunk=7, prompt_rows=rows)
    outs = []
    for faults in (Faults(), Faults(preempt_every=2), Faults(evict_every=2), Faults()):
        core.dial(faults)
        asked = submit(core, PROMPT, params)
        other = submit(core, [*PROMPT[:5], 99], params)
        run(core, asked, other)
        outs += [asked.output(), other.output()]
    for i, out in enumerate(outs):
        prompt = PROMPT if i % 2 == 0 else [*PROMPT[:5], 99]
        found = out.prompt_logprobs
        assert found is not None and found[0] is None and len(found) == len(prompt)
        for p, entry in enumerate(found[1:], 1):
            raw = raw_logprobs(hashed_logits(), prompt[:p])
            best = np.argsort(-raw, kind="stable")[:k].tolist()
            assert entry is not None and set(entry) == {prompt[p], *best}
            assert all(abs(value - raw[t]) < 1e-5 for t, value in entry.items())
    assert all(out.prompt_logprobs == outs[i % 2].prompt_logprobs for i, out in enumerate(outs))
    wanted = [step.wanted for step in core.program.steps]  # type: ignore[attr-defined]
    assert max(wanted) <= rows + 4 if rows else max(wanted) > 6


def test_prompt_logprobs_of_one_token_and_after_a_hit() -> None:
    core = make_core(FakeProgram(hashed_logits()))
    one = submit(core, [5], SamplingParams(max_tokens=2, prompt_logprobs=1))
    run(core, one)
    assert one.output().prompt_logprobs == [None]
    run(core, submit(core, PROMPT, GREEDY))
    plain = submit(core, PROMPT, GREEDY)
    scored = submit(core, PROMPT, SamplingParams(max_tokens=8, temperature=0, prompt_logprobs=0))
    made = run(core, plain, scored)
    assert made[0] == made[1] and plain.output().num_cached_tokens == len(PROMPT) - 1 and scored.output().num_cached_tokens == 0
    assert len(scored.output().prompt_logprobs or []) == len(PROMPT)


def test_a_prompt_row_without_numbers_fails_its_request_alone() -> None:
    good = hashed_logits()

    def logits(history: list[int]) -> np.ndarray:
        return np.full(VOCAB, np.inf, np.float32) if history[:3] == [9, 9, 9] and len(history) == 3 else good(history)

    core = make_core(FakeProgram(logits))
    bad = submit(core, [9, 9, 9, 4, 5, 6, 7], SamplingParams(max_tokens=4, prompt_logprobs=1, n=2))
    fine = submit(core, [1, 2], GREEDY)
    run(core, bad, fine)
    assert [c.finish for c in bad.choices] == ["error", "error"] and [c.token_ids for c in fine.choices] == alone([1, 2], GREEDY)


def test_tk04_padded_ids_are_never_drawn() -> None:
    """Logits wider than the tokenizer, with the padding ahead: neither drawn nor reported."""
    good = hashed_logits()

    def wide(history: list[int]) -> np.ndarray:
        return np.concatenate((good(history), np.full(40, 50.0, np.float32)))

    for params in (SamplingParams(max_tokens=30, temperature=2.0, seed=0, logprobs=5, ignore_eos=True), GREEDY):
        core = make_core(FakeProgram(wide))
        asked = submit(core, [1, 2], params)
        made = run(core, asked)[0]
        assert max(made) < VOCAB and made == alone([1, 2], params)[0]
        assert all(t < VOCAB for d in asked.output().outputs[0].logprobs or [] for t in d)


def test_bad_words_of_one_and_more_tokens_never_appear() -> None:
    def eager(history: list[int]) -> np.ndarray:
        row = np.zeros(VOCAB, np.float32)
        row[97:100] = 9.0
        return row

    params = SamplingParams(max_tokens=30, temperature=0.5, seed=1, bad_words=("c", "ab", "aaa"), ignore_eos=True)
    core = make_core(FakeProgram(eager))
    text = bytes(t for t in run(core, submit(core, [1, 2], params))[0] if t < 256).decode("latin1")
    assert "c" not in text and "ab" not in text and "aaa" not in text and text.count("a") > 3 and text.count("b") > 3


def test_bad_words_are_banned_over_the_output_only() -> None:
    """As vLLM: a bad word that the prompt begins may be completed by the first token."""
    core = make_core(FakeProgram(lambda history: np.eye(VOCAB, dtype=np.float32)[98] * 9))
    params = SamplingParams(max_tokens=3, temperature=0, bad_words=("ab",))
    assert run(core, submit(core, [97], params))[0] == [98, 98, 98]


def test_allowed_token_ids_and_an_impossible_mask() -> None:
    core = make_core(FakeProgram(hashed_logits()))
    only = submit(core, [1, 2], SamplingParams(max_tokens=9, seed=1, temperature=5.0, allowed_token_ids=[65, 66, EOS]))
    never = submit(core, [1, 2], SamplingParams(max_tokens=9, allowed_token_ids=[65], bad_words=["A"]))
    made = run(core, only, never)
    assert set(made[0]) <= {65, 66, EOS} and never.choices[0].finish == "error"


def test_penalties_count_as_documented() -> None:
    """repetition: prompt and output once each id; frequency: per occurrence in the output; presence: once, output only."""

    def flat(history: list[int]) -> np.ndarray:
        row = np.full(VOCAB, 1.0, np.float32)
        row[10:14] = (4.0, 3.9, 3.8, 3.7)
        return row

    def first(params: dict[str, Any], prompt: list[int], count: int = 4) -> list[int]:
        core = make_core(FakeProgram(flat))
        return run(core, submit(core, prompt, SamplingParams(max_tokens=count, temperature=0, **params)))[0]

    assert first({"repetition_penalty": 2.0}, [10, 10, 10]) == [11, 12, 13, 10]
    assert first({"frequency_penalty": 0.15}, [10, 10]) == [10, 11, 10, 12]
    assert first({"presence_penalty": 0.15}, [10, 10], 6) == [10, 11, 10, 10, 10, 10]
    core = make_core(FakeProgram(flat))
    core.dial(Faults(preempt_every=2))
    again = run(core, submit(core, [10, 10], SamplingParams(max_tokens=6, temperature=0, presence_penalty=0.15)))
    assert again == [[10, 11, 10, 10, 10, 10]], "a resumed sequence's prompt is still its prompt"
