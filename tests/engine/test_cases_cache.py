"""Cases PC (prefix cache), SC (scheduling) and CX (context limits) at the engine, and why a prefix missed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.engine.fakes import EOS, VOCAB, FakeProgram, hashed_logits
from tests.engine.running import alone, make_core, run, submit

from ridgeline.engine.core import EngineCore
from ridgeline.engine.request import Limits, RequestState
from ridgeline.errors import ContextLengthError
from ridgeline.kv.manager import CachePolicy
from ridgeline.scheduler.state import Faults
from ridgeline.types import CompletionOutput, SamplingParams

BLOCK = 4
GREEDY = SamplingParams(max_tokens=5, temperature=0, logprobs=1)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, 250, length)]


def answer(core: EngineCore, prompt: list[int], params: SamplingParams = GREEDY, **more: Any) -> RequestState:
    asked = submit(core, prompt, params, **more)
    run(core, asked)
    return asked


def cold(prompt: list[int], windows: tuple[int | None, ...], params: SamplingParams = GREEDY) -> list[CompletionOutput]:
    program = FakeProgram(hashed_logits(), windows=windows, blocks=(200,) * len(windows), block_size=BLOCK)
    return answer(make_core(program, chunk=512, policy="off"), prompt, params).output().outputs


@pytest.mark.parametrize("policy", ["radix", "hash"])
@pytest.mark.parametrize("windows", [(None,), (None, 6), (6,)])
@pytest.mark.parametrize("chunk", [3, 16, 512])
def test_pc01_a_hit_answers_as_a_miss(policy: CachePolicy, windows: tuple[int | None, ...], chunk: int) -> None:
    program = FakeProgram(hashed_logits(), windows=windows, blocks=(60,) * len(windows), block_size=BLOCK)
    core = make_core(program, chunk=chunk, seqs=3, policy=policy)
    reused = 0
    for k in range(1, 5):
        for length in (k * BLOCK - 1, k * BLOCK, k * BLOCK + 1):
            p = prompt_of(length, length)
            for q in (p, p, [*p, 7], [*p[:BLOCK], *prompt_of(9, 77)], p):
                asked = answer(core, q)
                assert asked.output().outputs == cold(q, windows), (length, q is p)
                reused += asked.output().num_cached_tokens or 0
            core.state.kv.evict(3)
            assert answer(core, p).output().outputs == cold(p, windows)
    assert reused > 100 and (core.state.kv.counts["hits_inside_block"] > 0 or policy == "hash")


@pytest.mark.parametrize("policy", ["radix", "hash"])
@pytest.mark.parametrize("blocks", [1, 2, 8])
def test_pc02_a_whole_prompt_in_the_cache_still_computes_one_token(policy: CachePolicy, blocks: int) -> None:
    p = prompt_of(blocks * BLOCK, blocks)
    core = make_core(FakeProgram(hashed_logits(), block_size=BLOCK), policy=policy)
    several, scored = SamplingParams(n=2, max_tokens=5, seed=1), SamplingParams(max_tokens=5, temperature=0, prompt_logprobs=1)
    for params in (GREEDY, GREEDY, GREEDY, several, scored, GREEDY):
        asked = answer(core, p, params)
        out = asked.output()
        assert out.outputs == cold(p, (None,), params) and (out.num_cached_tokens or 0) <= len(p) - 1
    talk = [*p, *cold(p, (None,))[0].token_ids]  # a next turn whose history is block aligned or not
    for extra in range(BLOCK):
        turn = [*talk, *prompt_of(extra, 5)]
        assert answer(core, turn).output().outputs == cold(turn, (None,))


def test_salted_and_other_tenants_share_nothing() -> None:
    core = make_core(FakeProgram(hashed_logits(), block_size=BLOCK))
    p = prompt_of(20)
    kinds: list[dict[str, Any]] = [{}, {"cache_salt": "s"}, {"tenant": "s"}, {"tenant": "s", "cache_salt": "s"}, {"cache_salt": "t"}]
    for more in kinds:
        assert answer(core, p, **more).output().num_cached_tokens == 0
    for more in kinds:
        assert answer(core, p, **more).output().num_cached_tokens == 19


def test_why_a_prefix_missed_is_on_the_output() -> None:
    core = make_core(FakeProgram(hashed_logits(), blocks=(40,), block_size=BLOCK))
    p = prompt_of(20)
    found = [answer(core, q, **more).output().cache for q, more in (
        (p, {}), (p, {}), ([*p[:13], 251, 252, 253], {}), (prompt_of(20, 9), {"cache_salt": "x"}), ([5], {}),
    )]  # fmt: skip
    assert [(c.reason, c.tokens, c.divergent) for c in found if c is not None] == [
        ("never_seen", 0, p[0]), ("complete", 19, None), ("never_seen", 13, 251), ("salted", 0, prompt_of(20, 9)[0]), ("too_short", 0, 5),
    ]  # fmt: skip
    core.state.kv.evict()
    report = answer(core, p).output().cache
    assert report is not None and (report.reason, report.tokens, report.matched) == ("evicted", 0, 20) and report.evicted_at is not None
    counts = core.metrics.counts
    assert (counts["prefix_complete"], counts["prefix_evicted"], counts["prefix_salted"], counts["prefix_never_seen"]) == (1, 1, 1, 2)
    off = make_core(FakeProgram(hashed_logits()), policy="off")
    report = answer(off, p).output().cache
    assert report is not None and report.reason == "ineligible"


def test_cache_ttl_keeps_a_prefix_under_pressure() -> None:
    core = make_core(FakeProgram(hashed_logits(), blocks=(20,), block_size=BLOCK))
    kept, plain = prompt_of(20, 1), prompt_of(20, 2)
    answer(core, kept, cache_ttl_s=1000.0)
    answer(core, plain)
    for seed in range(3, 9):
        answer(core, prompt_of(30, seed))
    assert (answer(core, kept).output().num_cached_tokens, answer(core, plain).output().num_cached_tokens) == (19, 0)


SC03: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 5},
    {"temperature": 0.7, "frequency_penalty": 1.0, "repetition_penalty": 1.3},
    {"temperature": 1.0, "allowed_token_ids": tuple(range(60, 120))},
    {"temperature": 1.0, "stop": ("ab", "zzz")},
    {"temperature": 1.0, "logprobs": 3},
    {"temperature": 1.0, "prompt_logprobs": 2},
    {"temperature": 1.0, "min_tokens": 50, "stop_token_ids": tuple(range(0, 250, 9))},
    {"temperature": 1.0, "n": 2},
]


@pytest.mark.parametrize("faults", [Faults(), Faults(preempt_every=6), Faults(preempt_every=9, evict_every=5)])
@pytest.mark.parametrize("policy", ["radix", "off"])
def test_sc03_a_preempted_request_resumes_as_if_nothing_had_happened(policy: CachePolicy, faults: Faults) -> None:
    """30 in, 60 out, on a pool that holds four: same tokens, lengths, ends, log-probabilities; every token is streamed once."""
    limits = Limits(200, VOCAB, frozenset({EOS}))
    requests = [(prompt_of(30, i), SamplingParams(max_tokens=60, **{"seed": i, **kind})) for i, kind in enumerate(SC03)]
    expected = []
    for prompt, params in requests:
        lone = make_core(FakeProgram(hashed_logits(), blocks=(90,)), chunk=200, policy="off", limits=limits)
        expected.append(answer(lone, prompt, params).output())
    core = make_core(FakeProgram(hashed_logits(), blocks=(90,)), chunk=32, policy=policy, limits=limits)
    core.dial(faults)
    asked = [submit(core, p, q) for p, q in requests]
    texts: dict[tuple[str, int], str] = {}
    counts: dict[tuple[str, int], int] = {}
    while core.busy:
        for choice in core.step():
            key = choice.request_id, choice.index
            texts[key] = texts.get(key, "") + choice.news().text
            counts[key] = counts.get(key, 0) + len(choice.news().token_ids)
    for one, want in zip(asked, expected, strict=True):
        got = one.output()
        assert got.outputs == want.outputs and got.prompt_logprobs == want.prompt_logprobs
        assert got.prompt_token_ids == want.prompt_token_ids
        assert all(texts[one.id, c.index] == c.text and counts[one.id, c.index] == len(c.token_ids) for c in got.outputs)
    assert core.state.counts["preemptions"] >= 3
    assert faults.preempt_every or sum(one.times.preemptions for one in asked) == core.state.counts["preemptions"]
    assert any(c.finish_reason == "stop" for one in asked for c in one.output().outputs)


def test_sc01_sc02_pools_too_small_end_in_an_answer_or_a_number() -> None:
    limits = Limits(8192, VOCAB, frozenset({EOS}))
    core = make_core(FakeProgram(hashed_logits(), blocks=(16,), block_size=BLOCK), limits=limits)
    with pytest.raises(ContextLengthError, match="64") as caught:
        submit(core, prompt_of(80), GREEDY)
    assert caught.value.value == 80 and caught.value.limit == 64
    short = submit(core, prompt_of(5), GREEDY)
    endless = submit(core, prompt_of(50, 3), SamplingParams(max_tokens=500, temperature=0, ignore_eos=True))
    waiting = submit(core, prompt_of(50, 4), GREEDY)
    run(core, short, endless, waiting)
    assert [one.choices[0].finish for one in (short, endless, waiting)] == ["length"] * 3
    assert len(endless.choices[0].token_ids) == 64 + 1 - 50 and len(waiting.choices[0].token_ids) == 5


def test_cx01_too_long_is_refused_with_numbers_and_never_cut() -> None:
    limits = Limits(512, VOCAB, frozenset({EOS}))
    core = make_core(FakeProgram(hashed_logits(), blocks=(200,)), limits=limits)
    with pytest.raises(ContextLengthError, match=r"2018.*512") as caught:
        submit(core, prompt_of(2018), GREEDY)
    assert (caught.value.field, caught.value.value, caught.value.limit) == ("prompt", 2018, 512)
    assert run(core, submit(core, prompt_of(511), SamplingParams(max_tokens=9, temperature=0)))[0] == alone_of(prompt_of(511), limits)[:1]


def alone_of(prompt: list[int], limits: Limits) -> list[int]:
    wide = Limits(9999, limits.vocab, limits.stop_ids)
    core = make_core(FakeProgram(hashed_logits(), blocks=(300,)), chunk=600, limits=wide, policy="off")
    return run(core, submit(core, prompt, SamplingParams(max_tokens=9, temperature=0)))[0]


def test_300_aborts_at_every_point_of_life_return_everything() -> None:
    rng = np.random.default_rng(1)
    core = make_core(FakeProgram(hashed_logits(), windows=(None, 6), blocks=(90, 60)), chunk=12, seqs=5)
    before = core.state.kv.usage()
    lasting = submit(core, prompt_of(9, 1), SamplingParams(max_tokens=50, temperature=0, ignore_eos=True))
    aborted = 0
    while aborted < 300:
        life = int(rng.integers(0, 9))
        params = SamplingParams(n=int(rng.integers(1, 4)), max_tokens=40, seed=aborted, ignore_eos=True)
        asked = submit(core, prompt_of(int(rng.integers(1, 40)), aborted % 7), params)
        for _ in range(life):
            core.step()
        done = all(c.finish is not None for c in asked.choices)
        assert core.abort(asked.id) is not done
        touched = core.step()
        assert done or ({c.finish for c in asked.choices} == {"abort"} and set(asked.choices) <= set(touched))
        aborted += not done
        if aborted % 50 == 0:
            core.state.kv.check()
    run(core, lasting)
    assert [lasting.choices[0].token_ids] == alone(prompt_of(9, 1), lasting.request.params, (None, 6))
    core.state.kv.evict()
    assert core.state.kv.usage() == before and not core.state.sequences and not core.state.by_request
    assert core.metrics.counts["finished"] == core.metrics.counts["requests"]
