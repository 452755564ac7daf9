"""Reasoning before a bound answer, and budgets (case SO-05): the answer always parses, however the reasoning went."""

from __future__ import annotations

import random

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from tests.sampling.grammar_world import bits, compiled, draw, has, id_of, loads, schema, tokenizer

from ridgeline.errors import InternalError
from ridgeline.sampling.thinking import ThinkingGuide, ThinkMarks
from ridgeline.text.reasoning import TAGS, ReasoningStream, Start, ThinkTags

TWO = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
THINK = next(tags for tags in TAGS if tags.name == "think")
SPELLED = ThinkTags("spelled", "<thk>", "</thk>")  # no token of its own
WORDS = tokenizer()
MARKS = {tags.name: ThinkMarks(WORDS, tags, WORDS.eos_ids) for tags in (THINK, SPELLED)}
OPEN, CLOSE = WORDS.added["<think>"], WORDS.added["</think>"]


def split(tags: ThinkTags, start: Start, ids: list[int]) -> tuple[str, str]:
    raw = b"".join(WORDS.token_bytes(i) for i in ids if i not in WORDS.eos_ids)
    stream = ReasoningStream(tags, start)
    thoughts = [stream.push(raw.decode("utf-8", "replace")), stream.finish()]
    return "".join(t.reasoning for t in thoughts), "".join(t.content for t in thoughts)


@pytest.mark.parametrize("tags", [THINK, SPELLED], ids=lambda tags: tags.name)
@pytest.mark.parametrize("start", ["open", "closed", "unknown"])
@pytest.mark.parametrize("budget", [None, 0, 1, 7])
def test_the_answer_follows_the_grammar_whatever_was_thought(tags: ThinkTags, start: Start, budget: int | None) -> None:
    guide = ThinkingGuide(MARKS[tags.name], start, compiled(schema(TWO)), budget)
    validator, ended, thought = Draft202012Validator(TWO), 0, 0
    wishes = [CLOSE, *WORDS.eos_ids, id_of(b"k>{"), id_of(b"</")]
    for seed in range(40):
        rng = random.Random(seed)
        # A model that wants to end the reasoning (or the whole) now and then, by its token or letter by letter.
        state, ids, done = guide.start(), [], False
        spelled = list(tags.close.encode())
        while not done and len(ids) < 400:
            assert state.confines
            part = draw(state, rng, limit=1, close=0.5, prefer=[OPEN] if not ids and seed % 2 else wishes if rng.random() < 0.05 else ())
            ids += part[0]
            done = part[1] == "stop"
            if not done and state.thinking and rng.random() < 0.05:
                for byte in spelled:
                    mask = state.allowed()
                    token = id_of(bytes([byte]))
                    if not state.thinking or (mask is not None and not has(mask, token)):
                        break
                    ids.append(token)
                    done = state.accept(token)
        if not done:
            continue
        ended += 1
        reasoning, content = split(tags, start, ids)
        thought += bool(reasoning)
        assert validator.is_valid(loads(content)), (reasoning, content)
        assert not [i for i in ids[:-1] if i in WORDS.eos_ids]
    assert ended > 5
    if start == "open" and budget is None:
        assert thought


def test_thinking_cannot_end_the_text_and_a_tag_cannot_carry_the_answer_with_it() -> None:
    state = ThinkingGuide(MARKS["spelled"], "open", compiled(schema(TWO))).start()
    mask = state.allowed()
    assert mask is not None and not [i for i in WORDS.eos_ids if has(mask, i)] and bits(mask).max() < WORDS.size
    for byte in b"x </th":
        state.accept(id_of(bytes([byte])))
    mask = state.allowed()
    assert mask is not None and not has(mask, id_of(b"k>{")) and has(mask, id_of(b"k>"))
    state.accept(id_of(b"k>"))
    behind = state.allowed()
    assert behind is not None and has(behind, id_of(b"\n\n")) and has(behind, id_of(b"{")) and not has(behind, id_of(b"a"))
    state.accept(id_of(b"\n\n"))
    state.accept(id_of(b"\n"))
    assert bits(state.allowed()).tolist() == bits(compiled(schema(TWO)).start().allowed()).tolist()


def test_thinking_is_the_models_choice_when_the_prompt_leaves_it_open() -> None:
    state = ThinkingGuide(MARKS["think"], "unknown", compiled(schema(TWO))).start()
    assert set(bits(state.allowed())) == {OPEN, *bits(compiled(schema(TWO)).start().allowed())}
    state.accept(id_of(b"{"))
    assert not state.thinking and state.allowed() is not None and not has(state.allowed(), OPEN)
    spelled = ThinkingGuide(MARKS["spelled"], "unknown", compiled(schema(TWO))).start()
    for byte in b"<thk>":
        assert has(spelled.allowed(), id_of(bytes([byte])))
        spelled.accept(id_of(bytes([byte])))
    assert spelled.thinking


@pytest.mark.parametrize("budget", [0, 1, 5, 30])
@pytest.mark.parametrize("tags", [THINK, SPELLED], ids=lambda tags: tags.name)
def test_a_budget_closes_the_reasoning(budget: int, tags: ThinkTags) -> None:
    marks = MARKS[tags.name]
    state = ThinkingGuide(marks, "open", None, budget).start()
    for _ in range(budget):
        assert state.allowed() is None and not state.confines
        assert not state.accept(id_of(b"x"))
    for token in marks.close_ids:
        assert bits(state.allowed()).tolist() == [token]
        state.accept(token)
    assert state.allowed() is None and not state.thinking and not state.done
    for _ in range(50):  # free text again, "</think>" or not
        assert not state.accept(id_of(b"<")) and state.allowed() is None


def test_a_budget_does_not_cut_a_character() -> None:
    state = ThinkingGuide(MARKS["think"], "open", None, 2).start()
    for piece in (b"x", b"\xe5\x8c"):
        state.accept(id_of(piece))
    assert state.allowed() is None
    state.accept(id_of(b"\x97\xe4"))
    assert state.allowed() is None
    for _ in range(3):  # but it does not wait for ever
        state.accept(id_of(b"\xe5"))
    assert bits(state.allowed()).tolist() == [CLOSE]


def test_a_model_that_closes_in_time_is_left_alone() -> None:
    state = ThinkingGuide(MARKS["think"], "unknown", None, 5).start()
    for token in (OPEN, id_of(b"a"), CLOSE, *[id_of(b"b")] * 20):
        assert state.allowed() is None
        state.accept(token)
    free = ThinkingGuide(MARKS["think"], "unknown", None, 5).start()
    for _ in range(20):
        assert free.allowed() is None
        free.accept(id_of(b"b"))


@pytest.mark.parametrize("start", ["open", "unknown"])
def test_rejected_drafts_are_taken_back(start: Start) -> None:
    guide = ThinkingGuide(MARKS["think"], start, compiled(schema(TWO)), 6)
    for seed in range(10):
        rng = random.Random(seed)
        plain, drafted = guide.start(), guide.start()
        for step in range(60):
            tried, _ = draw(drafted, rng, limit=rng.randint(1, 6), close=0.5, prefer=[CLOSE] if rng.random() < 0.3 else ())
            drafted.rollback(len(tried))
            assert np.array_equal(plain.allowed(), drafted.allowed()) and plain.thinking == drafted.thinking
            (token,), finish = draw(plain, rng, limit=1, close=0.4, prefer=[OPEN] if step == 0 and seed % 2 else ())
            assert drafted.accept(token) == (finish == "stop") and plain.done == drafted.done
            if finish == "stop":
                break
        with pytest.raises(InternalError):
            drafted.rollback(1000)
