"""`LLM` as vLLM users call it: kinds of prompts, parameters for all or each, outputs in order, refusals before anything runs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.fakes import EOS, hashed_logits, loaded, scripted

from ridgeline.engine.llm import LLM
from ridgeline.errors import ContextLengthError, UserError
from ridgeline.types import SamplingParams

GREEDY = SamplingParams(max_tokens=6, temperature=0)


def llm(**options: Any) -> LLM:
    return LLM.from_loaded(loaded(hashed_logits(), **options))


def test_every_kind_of_prompt_means_the_same() -> None:
    model = llm()
    kinds: list[Any] = ["abc", {"prompt": "abc"}, {"prompt_token_ids": [97, 98, 99]}, [97, 98, 99]]
    outs = model.generate(kinds, GREEDY)
    assert [o.prompt_token_ids for o in outs] == [[97, 98, 99]] * 4 and len({tuple(o.outputs[0].token_ids) for o in outs}) == 1
    for kind in kinds:
        assert model.generate(kind, GREEDY)[0].outputs[0].token_ids == outs[0].outputs[0].token_ids
    assert [o.prompt for o in outs] == ["abc", "abc", None, None] and all(o.finished for o in outs)


def test_outputs_keep_the_order_of_prompts_and_choices() -> None:
    prompts, params = ["one", "three", "tw"], [GREEDY, SamplingParams(n=3, max_tokens=4, seed=1), GREEDY]
    outs = llm(max_num_seqs=2).generate(prompts, params)
    assert [o.request_id for o in outs] == ["0", "1", "2"] and [[c.index for c in o.outputs] for o in outs] == [[0], [0, 1, 2], [0]]
    alone = [llm().generate(p, q)[0] for p, q in zip(prompts, params, strict=True)]
    assert [[c.token_ids for c in o.outputs] for o in outs] == [[c.token_ids for c in o.outputs] for o in alone]


def test_defaults_are_those_of_vllm() -> None:
    out = llm().generate("abc")[0].outputs[0]
    assert len(out.token_ids) == 16 and out.finish_reason == "length" and out.logprobs is None and out.cumulative_logprob is None


def test_no_prompts_no_outputs() -> None:
    assert llm().generate([], GREEDY) == []


def test_chat_goes_through_the_template() -> None:
    talk = [{"role": "user", "content": "hi"}]
    text = "<user>hi\n<assistant>"
    model = LLM.from_loaded(loaded(scripted(b"yes", len(text))))
    one = model.chat(talk, GREEDY)
    assert one[0].prompt == text and one[0].outputs[0].text == "yes" and one[0].outputs[0].token_ids == [*b"yes", EOS]
    assert [o.outputs[0].text for o in model.chat([talk, talk], GREEDY)] == ["yes", "yes"]


@pytest.mark.parametrize(
    ("prompts", "params", "error", "words"),
    [
        (["fits", "x" * 64], GREEDY, ContextLengthError, "64"),
        (["a", "b"], [GREEDY], UserError, "1 sampling_params for 2 prompts"),
        ([{"text": "a"}], GREEDY, UserError, "prompt_token_ids"),
        ([3.5], GREEDY, UserError, "float"),
        ([[1, 2.5]], GREEDY, UserError, "2.5"),
        (["a", ""], GREEDY, UserError, "no tokens"),
        ("a", SamplingParams(logit_bias=((300, 1.0),)), UserError, "300"),
    ],
)
def test_refusals_come_before_any_work(prompts: Any, params: Any, error: type[UserError], words: str) -> None:
    model = loaded(hashed_logits())
    with pytest.raises(error) as caught:
        LLM.from_loaded(model).generate(prompts, params)
    assert words in str(caught.value) and model.program.steps == []  # type: ignore[attr-defined]


def test_stream_says_what_generate_says() -> None:
    model = llm()
    text, last = "", None
    for last in model.stream([1, 2, 3], GREEDY):
        text += last.delta
    assert last is not None and last.finish == "length"
    assert text == last.text == model.generate([1, 2, 3], GREEDY)[0].outputs[0].text


def test_a_stream_left_half_way_leaves_a_working_model() -> None:
    model = llm()
    expected = model.generate([1, 2, 3], GREEDY)
    stream = model.stream([1, 2, 3], GREEDY)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert model.generate([1, 2, 3], GREEDY)[0].outputs == expected[0].outputs
