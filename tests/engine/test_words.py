"""Text for the engine from a real file's tokenizer: prompts, bad words in all their spellings, and what they do to an answer."""

from __future__ import annotations

import pytest
from tests.cli.tiny_gguf import END_ID, tiny_gguf

from ridgeline.engine.llm import LLM
from ridgeline.types import SamplingParams

AB = 259  # the one merged token of the tiny vocabulary


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(str(tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")), max_num_seqs=4)


def test_spellings_are_those_that_can_be_drawn(llm: LLM) -> None:
    text = llm.model.text
    assert text.spellings(["ab"]) == [(AB,)], "after a space the last token is the same, so one entry bans both"
    assert text.spellings(["x", " x", "x"]) == [(120,)]
    assert all(text.tokenizer.decode(list(ids)).lstrip() in ("ab", "hello") for ids in text.spellings(["ab", "hello"]))
    assert text.spellings(["<|im_end|>"])[0] != (END_ID,), "a control token's name is text, not the token"


def test_bad_words_are_kept_out_of_an_answer(llm: LLM) -> None:
    free = SamplingParams(max_tokens=40, temperature=2.0, seed=3, ignore_eos=True)
    text = llm.generate("abc", free)[0].outputs[0].text
    seen = [c for c in sorted(set(text)) if c.isascii() and c.isalnum()][:5]
    assert len(seen) > 2
    kept = llm.generate("abc", SamplingParams(max_tokens=40, temperature=2.0, seed=3, ignore_eos=True, bad_words=tuple(seen)))
    assert not set(seen) & set(kept[0].outputs[0].text) and len(kept[0].outputs[0].token_ids) == 40


def test_prompt_logprobs_sum_up_to_the_same_whatever_is_cached(llm: LLM) -> None:
    params = SamplingParams(max_tokens=2, temperature=0, prompt_logprobs=2, logprobs=1)
    first, again = llm.generate("the same text twice", params)[0], llm.generate("the same text twice", params)[0]
    assert first.prompt_logprobs == again.prompt_logprobs and first.outputs == again.outputs
    ids = first.prompt_token_ids
    assert first.prompt_logprobs is not None and len(first.prompt_logprobs) == len(ids)
    assert all(t in d and 2 <= len(d) <= 3 for t, d in zip(ids[1:], first.prompt_logprobs[1:], strict=True) if d is not None)
    assert again.cache is not None and again.cache.reason == "ineligible" and again.num_cached_tokens == 0
    plain = llm.generate("the same text twice", SamplingParams(max_tokens=2, temperature=0, logprobs=1))[0]
    assert plain.num_cached_tokens == len(ids) - 1 and plain.outputs == first.outputs


def test_echo_is_prompt_and_answer_in_one_row_of_logprobs(llm: LLM) -> None:
    """What an API joins for `echo`: the answer's own tokens, scored as a prompt, have the log-probabilities they were drawn with."""
    drawn = llm.generate("echo", SamplingParams(max_tokens=8, temperature=1.5, seed=2, logprobs=0, ignore_eos=True))[0]
    ids = [*drawn.prompt_token_ids, *drawn.outputs[0].token_ids]
    scored = llm.generate([ids], SamplingParams(max_tokens=1, prompt_logprobs=0))[0].prompt_logprobs
    assert scored is not None and scored[len(drawn.prompt_token_ids) :] == drawn.outputs[0].logprobs
