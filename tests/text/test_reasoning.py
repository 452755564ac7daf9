"""Reasoning apart from the answer (case SO-05): any tag, any cut, opened by the template, left out, or never closed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.text.replies import render_chat
from tests.text.text_samples import byte_level

from ridgeline.errors import UserError
from ridgeline.text.from_gguf import tokenizer_from_gguf
from ridgeline.text.reasoning import TAGS, ReasoningStream, Start, ThinkTags, choose_tags, start_of

THINK, MISTRAL, GEMMA = (next(tags for tags in TAGS if tags.name == name) for name in ("think", "mistral", "gemma4"))
DATA = Path(__file__).parent / "data"


def split(tags: ThinkTags, start: Start, parts: list[str]) -> tuple[str, str]:
    stream = ReasoningStream(tags, start)
    thoughts = [*(stream.push(part) for part in parts), stream.finish()]
    return "".join(t.reasoning for t in thoughts), "".join(t.content for t in thoughts)


CASES: list[tuple[ThinkTags, Start, str, str, str]] = [
    (THINK, "unknown", "<think>\nFirst.\n\nThen.\n</think>\n\nAnswer.\n", "First.\n\nThen.", "Answer.\n"),
    (THINK, "unknown", "\n<think>a</think>b", "a", "b"),
    (THINK, "unknown", "Just an answer <think>not this</think>", "", "Just an answer <think>not this</think>"),
    (THINK, "unknown", "\n Just an answer", "", "\n Just an answer"),
    (THINK, "unknown", "<think>\n\n</think>\n\nShort.", "", "Short."),
    (THINK, "unknown", "<thin", "", "<thin"),
    (THINK, "unknown", "", "", ""),
    (THINK, "unknown", "  ", "", "  "),
    (THINK, "unknown", "<think>cut of", "cut of", ""),
    (THINK, "unknown", "<think>cut </thin", "cut </thin", ""),
    (THINK, "open", "Hm, a < b and </b> </think>\nYes.", "Hm, a < b and </b>", "Yes."),
    (THINK, "open", "never closed \n", "never closed", ""),
    (THINK, "open", "</think>At once.", "", "At once."),
    (THINK, "open", "a</think>b</think>c", "a", "b</think>c"),
    (THINK, "closed", "No thinking. </think>", "", "No thinking. </think>"),
    (THINK, "closed", "<think>all the same</think> x", "all the same", "x"),
    (MISTRAL, "unknown", "[THINK]hm[/THINK]ok", "hm", "ok"),
    (GEMMA, "unknown", "<|channel>thought\nhm <channel|>ok", "hm", "ok"),
    (GEMMA, "unknown", "<|channel>thou <channel|>ok", "thou", "ok"),
]


@pytest.mark.parametrize(("tags", "start", "text", "reasoning", "content"), CASES)
def test_splits_the_same_however_it_is_cut(tags: ThinkTags, start: Start, text: str, reasoning: str, content: str) -> None:
    assert split(tags, start, [text]) == (reasoning, content)
    for size in range(1, 41):
        assert split(tags, start, [text[at : at + size] for at in range(0, len(text), size)]) == (reasoning, content), size
    for at in range(len(text)):
        assert split(tags, start, [text[:at], text[at:]]) == (reasoning, content), at


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(["<think>", "</think>", "<th", "ink>", "</", "a", "\n", " ", "🫠", "thought\n", "<|channel>", "<channel|>"]),
        max_size=12,
    ).map("".join),
    st.sampled_from([THINK, GEMMA]),
    st.sampled_from(["open", "closed", "unknown"]),
    st.integers(0, 2**32),
)
def test_random_texts(text: str, tags: ThinkTags, start: Start, seed: int) -> None:
    rng, parts, at = random.Random(seed), [], 0
    while at < len(text):
        size = rng.randint(1, 5)
        parts.append(text[at : at + size])
        at += size
    whole = split(tags, start, [text])
    assert split(tags, start, parts) == whole
    if tags.open not in text and start != "open":
        assert whole == ("", text)
    kept = "".join("".join(whole).split())
    assert len(kept) >= len("".join(text.split())) - len(tags.open) - len(tags.close) - len(tags.label)


def test_text_is_not_held_back_longer_than_needed() -> None:
    stream = ReasoningStream(THINK, "unknown")
    assert stream.push("Hello").content == "Hello"
    stream = ReasoningStream(THINK, "open")
    assert stream.push("one two </").reasoning == "one two" and stream.inside
    assert stream.push("b>").reasoning == " </b>"
    assert stream.push("</think>x").content == "x" and not stream.inside


def test_the_prompt_tells_where_a_reply_starts() -> None:
    assert start_of(THINK, "<|im_start|>assistant\n<think>\n") == "open"
    assert start_of(THINK, "<|im_start|>assistant\n") == "unknown"
    assert start_of(THINK, "...<think>\n\n</think>\n\n") == "closed"
    assert start_of(GEMMA, "<|turn>model\n<|channel>thought\n") == "open"
    tokenizer = tokenizer_from_gguf(byte_level())
    user = [{"role": "user", "content": "hi <think>"}]
    qwen, deepseek = ((DATA / f"{name}.jinja").read_text("utf8") for name in ("qwen3_thinking", "deepseek_r1"))
    assert start_of(THINK, render_chat(tokenizer, user, template=qwen)) == "unknown"
    assert start_of(THINK, render_chat(tokenizer, user, template=qwen, enable_thinking=False)) == "closed"
    assert start_of(THINK, render_chat(tokenizer, user, template=deepseek)) == "open"


def test_tags_by_template_and_by_name() -> None:
    assert choose_tags((DATA / "qwen3_thinking.jinja").read_text("utf8")) is THINK
    assert choose_tags((DATA / "deepseek_r1.jinja").read_text("utf8")) is THINK
    assert choose_tags((DATA / "chatml.jinja").read_text("utf8")) is None
    assert choose_tags(None) is None
    assert choose_tags("</think>", "none") is None
    assert choose_tags(None, "deepseek_r1") is THINK and choose_tags(None, "magistral") is MISTRAL
    with pytest.raises(UserError, match="think"):
        choose_tags(None, "klingon")
