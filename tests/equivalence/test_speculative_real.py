"""Promise 1 with speculation on real models: random schedules with guesses, and quoting answers through every kind of proposer."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

pytest.importorskip("ridgeline.backends.cpu.native._native", reason="the native backend is not built")

from tests.equivalence.test_speculative import Guessing

from ridgeline.bench.spec import DOMAINS, prompts_of
from ridgeline.engine.llm import LLM
from ridgeline.formats.pull import find_cached
from ridgeline.types import SamplingParams

pytestmark = pytest.mark.real_model


def need(family: str) -> None:
    if find_cached(family) is None:
        pytest.skip(f"{family} is not in the cache: ridgeline pull {family}")


@pytest.mark.parametrize(
    ("family", "count"),
    [("smollm2", 8), pytest.param("smollm2", 200, marks=pytest.mark.long), pytest.param("gemma3-270m", 100, marks=pytest.mark.long)],
)
def test_any_schedule_with_drafts_gives_each_request_what_it_gets_alone(family: str, count: int) -> None:
    need(family)
    events: Counter[str] = Counter()
    bad = {seed: wrong for seed in range(count) if (wrong := Guessing(seed, families=(family,)).run(events))}
    assert bad == {}
    assert events["spec_decode_num_draft_tokens"] > events["spec_decode_num_accepted_tokens"] > 20
    assert events["ended_error"] == events["backend_faults"] == events["engine_restarts"] == 0


PARAMS = [
    SamplingParams(temperature=t, top_p=p, seed=i, max_tokens=24, logprobs=1, frequency_penalty=f)
    for i, (t, p, f) in enumerate([(0.0, 1.0, 0.0), (0.7, 0.95, 0.0), (1.0, 1.0, 0.3)])
]


@cache
def answers(config: str | None) -> list[list[object]]:
    """Twelve prompts at once, three kinds of draws; without and with guesses."""
    llm = LLM("smollm2", max_model_len=1024, max_num_seqs=8, speculative_config=config)
    prompts = [llm.model.text.render([{"role": "user", "content": prompts_of(d)[i]}])[1] for d in DOMAINS for i in range(3)]
    outs = llm.generate(prompts, [PARAMS[i % 3] for i in range(len(prompts))])
    if config is not None:
        assert llm.core.metrics.counts["spec_decode_num_accepted_tokens"] > 15
        assert llm.core.speculator is not None and llm.core.speculator.fault is None
    return [[c.token_ids, c.text, c.finish_reason, c.logprobs, c.cumulative_logprob] for out in outs for c in out.outputs]


@pytest.mark.parametrize(
    "config",
    [
        '{"method": "ngram", "num_speculative_tokens": 6, "adaptive": false}',
        '{"method": "ngram", "num_speculative_tokens": 8}',
        '{"method": "draft_model", "model": "smollm2", "num_speculative_tokens": 3, "adaptive": false}',
        '{"method": "self", "num_speculative_tokens": 3, "adaptive": false}',
    ],
)
def test_answers_do_not_change_by_a_bit(config: str) -> None:
    need("smollm2")
    assert answers(config) == answers(None)
