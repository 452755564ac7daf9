"""Regular expressions, choices and grammars; separate states; ids without text (cases SO-01, SO-05, TK-04)."""

from __future__ import annotations

import json
import random
import re
import threading

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from tests.sampling.grammar_world import (
    bits,
    compiled,
    draw,
    has,
    id_of,
    ids_of,
    loads,
    schema,
    takes_text,
    text_of,
    tokenizer,
)
from tests.text.text_samples import byte_level

from ridgeline.errors import InternalError, UserError
from ridgeline.sampling.grammar import GrammarCompiler, GrammarSpec
from ridgeline.sampling.guide import MaskPool, both
from ridgeline.sampling.plan import SamplePlan, SampleRow
from ridgeline.sampling.transforms import sample_rows
from ridgeline.text.from_gguf import tokenizer_from_gguf

TWO = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"\d{3}-[a-z]+", ["123-abc"], ["12-abc", "123-", "٣٣٣-abc", "123-abc "]),
        ("^abc$", ["abc"], ["^abc$", "abcd"]),
        ("a/b|c\\.d", ["a/b", "c.d"], ["cxd"]),
        ("[а-я]+ü🙂?", ["наü", "наü🙂"], ["ü"]),
        ("(a+)+$", ["aaa"], ["aab"]),
        ("(yes|no)\n", ["yes\n"], ["yes"]),
        ('"(a|b)"', ['"a"'], ["a"]),
        ("(a{1,1000}){1,1000}", ["a" * 50], ["b"]),
    ],
)
def test_a_regular_expression_matches_the_whole(pattern: str, good: list[str], bad: list[str]) -> None:
    guide = compiled(GrammarSpec("regex", pattern))
    for text in good:
        assert takes_text(guide, text), text
    for text in bad:
        assert not takes_text(guide, text), text
    for seed in range(20):
        ids, finish = draw(guide.start(), random.Random(seed), limit=100, close=0.5)
        assert finish == "length" or re.fullmatch(pattern, text_of(ids))


def test_choices() -> None:
    choices = ["a", "ab", "北京", 'say "hi"\n', "\\d+", "🙂 /x/", "<tool_call>"]
    guide = compiled(GrammarSpec("choice", choices))
    assert all(takes_text(guide, choice) for choice in choices) and not takes_text(guide, "b") and not takes_text(guide, "12")
    drawn = {text_of(draw(guide.start(), random.Random(seed))[0]) for seed in range(60)}
    assert drawn <= set(choices) and len(drawn) > 3
    state = guide.start()
    assert not state.accept(id_of(b"a")) and not state.done  # "ab" may follow
    assert state.accept(id_of(b"b")) and state.done


@pytest.mark.parametrize(
    "source",
    [
        'start: "x" pair ("," pair)*\npair: KEY "=" /[0-9]+/\nKEY: /[a-z]{1,3}/',
        'root ::= "x" pair ("," pair)*\npair ::= [a-z]{1,3} "=" [0-9]+',
    ],
    ids=["lark", "gbnf"],
)
def test_grammars(source: str) -> None:
    guide = compiled(GrammarSpec("grammar", source))
    assert takes_text(guide, "xab=1,c=22") and not takes_text(guide, "xab=") and not takes_text(guide, "x")


def test_a_grammar_for_a_sentencepiece_vocabulary() -> None:
    """Byte pieces, and no space that the tokenizer would put in front of forced text."""
    guide = compiled(GrammarSpec("choice", ["two user", "the lead"]), "spm")
    for seed in range(10):
        ids, finish = draw(guide.start(), random.Random(seed), kind="spm")
        assert finish == "stop" and text_of(ids, "spm") in ("two user", "the lead")
    numbers = compiled(schema({"type": "array", "items": {"type": "integer"}, "maxItems": 3}), "spm")
    for seed in range(10):
        ids, finish = draw(numbers.start(), random.Random(seed), kind="spm", limit=300)
        assert finish == "length" or len(loads(text_of(ids, "spm"))) <= 3


def test_equal_requests_share_and_states_do_not() -> None:
    assert compiled(schema(TWO)) is compiled(schema(json.dumps(TWO)))
    guide = compiled(schema(TWO))
    states = [guide.start() for _ in range(3)]
    texts = []
    rngs = [random.Random(i) for i in range(3)]
    outs: list[list[int]] = [[], [], []]
    live = [0, 1, 2]
    while live:  # in turns, as a batch would
        for i in list(live):
            ids, finish = draw(states[i], rngs[i], limit=1, close=0.5)
            outs[i] += ids
            if finish == "stop" or len(outs[i]) > 400:
                live.remove(i)
    texts = [text_of(out) for out, state in zip(outs, states, strict=True) if state.done]
    assert texts and all(Draft202012Validator(TWO).is_valid(loads(text)) for text in texts)


def test_rejected_drafts_are_taken_back() -> None:
    guide = compiled(schema(TWO))
    rng = random.Random(3)
    plain, drafted = guide.start(), guide.start()
    for _ in range(200):
        # Whatever is tried and taken back leaves the place as it was.
        tried, _ = draw(drafted, rng, limit=rng.randint(1, 5), close=0.5)
        drafted.rollback(len(tried))
        assert np.array_equal(plain.allowed(), drafted.allowed()) and plain.done == drafted.done
        (token,), finish = draw(plain, rng, limit=1, close=0.4)
        assert has(drafted.allowed(), token) and drafted.accept(token) == (finish == "stop")
        if finish == "stop":
            return
    with pytest.raises(InternalError):
        drafted.rollback(10_000)


def test_a_token_that_was_not_allowed_is_an_error_of_ours() -> None:
    state = compiled(GrammarSpec("choice", ["a"])).start()
    with pytest.raises(InternalError, match="does not fit"):
        state.accept(id_of(b"}"))


def test_masks_are_made_beside_the_step() -> None:
    guide, pool = compiled(schema(TWO)), MaskPool()
    states = [guide.start() for _ in range(8)]
    rng = random.Random(0)
    for _ in range(40):
        future = pool.prepare(states)
        masks = [state.allowed() for state in states]  # at once: they wait for the maker or make their own
        future.result()
        for state, mask in zip(states, masks, strict=True):
            assert state.allowed() is mask
            if not state.done:
                draw(state, rng, limit=1)
    threads = set(threading.enumerate())
    pool.close()
    assert len(threads - set(threading.enumerate())) == 1


def test_a_failing_mask_does_not_stop_the_others() -> None:
    class Broken:
        done, confines = False, True

        def allowed(self) -> None:
            raise UserError("over a limit")

        def accept(self, token: int) -> bool:
            return False

        def rollback(self, count: int) -> None: ...

    state, pool = compiled(schema(TWO)).start(), MaskPool()
    pool.prepare([Broken(), state]).result()
    assert state.allowed() is not None
    pool.close()


@pytest.mark.parametrize(
    "spec",
    [None, GrammarSpec("json_object"), schema(TWO), GrammarSpec("grammar", "start: <[*]>+")],
    ids=["free", "object", "two", "any id"],
)
def test_ids_without_text_are_never_drawn(spec: GrammarSpec | None) -> None:
    """Case TK-04: the output layer is wider than the tokenizer, and its extra rows are the largest. So do ids without a token get."""
    plain = byte_level()
    holes = {"tokenizer.ggml.tokens": [*plain["tokenizer.ggml.tokens"]], "tokenizer.ggml.token_type": [*plain["tokenizer.ggml.token_type"]]}
    words = tokenizer_from_gguf(byte_level(**holes))
    state = None if spec is None else GrammarCompiler(words, words.eos_ids).compile(spec).start()
    rng, ids = np.random.default_rng(0), []
    for position in range(200):
        logits = rng.standard_normal((1, words.size + 40)).astype(np.float32)
        logits[:, words.size :] = 50
        mask = None if state is None else state.allowed()
        assert mask is None or (len(mask) == (words.size + 31) // 32 and bits(mask).max() < words.size)
        row = SampleRow(0, temperature=2.0, seed=0, position=position, allowed=mask)
        sampled = sample_rows(logits, SamplePlan((row,), words.size))
        assert not sampled.failed[0] and 0 <= sampled.tokens[0] < words.size
        ids.append(int(sampled.tokens[0]))
        if state is not None and state.accept(ids[-1]):
            break
    assert len(ids) == 200 or state is not None


def test_control_tokens_stay_out_of_text() -> None:
    """A control token's name is no text: inside a string it can only come letter by letter."""
    mask = compiled(schema({"type": "string"})).start()
    mask.accept(id_of(b'"'))
    allowed = mask.allowed()
    assert allowed is not None and not [i for i in tokenizer().special_ids if has(allowed, i)]


def test_the_end_is_allowed_exactly_when_the_text_is_whole() -> None:
    guide, end = compiled(GrammarSpec("regex", "ab?")), min(tokenizer().eos_ids)
    state = guide.start()
    assert not has(state.allowed(), end)
    state.accept(id_of(b"a"))
    assert has(state.allowed(), end) and not state.done
    assert state.accept(end) and state.done
    state = guide.start()
    state.accept(id_of(b"a"))
    assert state.accept(id_of(b"b")) and state.done and state.accept(end)


def test_min_tokens_and_biases_leave_a_finished_text_whole() -> None:
    """What an engine does with min_tokens 200, a bias against quotes and temperature 2: what ends is valid, nothing hangs."""
    guide, words, validator = compiled(schema(TWO)), tokenizer(), Draft202012Validator(TWO)
    no_end = np.full((words.size + 31) // 32, 0xFFFFFFFF, np.uint32)
    for end in words.eos_ids:
        no_end[end >> 5] &= np.uint32(0xFFFFFFFF ^ (1 << (end & 31)))
    bias = np.array(ids_of(b'"'), np.int32), np.array([-100.0], np.float32)
    rng, ended = np.random.default_rng(1), 0
    for seed in range(20):
        state, ids = guide.start(), []
        for position in range(300):
            logits = rng.standard_normal((1, words.size)).astype(np.float32)
            logits[0, ids_of(b"}", b'"', b'"}')] += 4
            row = SampleRow(
                0,
                temperature=2.0,
                seed=seed,
                position=position,
                allowed=both(state.allowed(), no_end),
                bias_ids=bias[0],
                bias_values=bias[1],
            )
            sampled = sample_rows(logits, SamplePlan((row,), words.size))
            assert not sampled.failed[0]
            ids.append(int(sampled.tokens[0]))
            if state.accept(ids[-1]):
                ended += 1
                assert validator.is_valid(loads(text_of(ids)))
                break
    assert ended


def test_schemas_inside_grammars_have_bounded_blanks() -> None:
    guide = compiled(GrammarSpec("grammar", f'start: "%json {{" %json {json.dumps(TWO)} // %json\n'))
    assert takes_text(guide, '%json {{"a": 1,\n "b": ""}') and not takes_text(guide, '%json {{"a":' + " " * 9 + '1,"b":""}')
