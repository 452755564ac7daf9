"""Grammars on real vocabularies (byte-level 49k, SentencePiece 262k): random draws validate, masks stay quick, blanks end."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from tests.oracle.model_files import model_file
from tests.sampling.grammar_world import bits, loads
from tests.text.replies import parse_reply

from ridgeline.engine.words import Words, open_words
from ridgeline.formats.checkpoint import open_checkpoint
from ridgeline.sampling.calls import compile_calls
from ridgeline.sampling.grammar import Grammar, GrammarCompiler, GrammarSpec
from ridgeline.text.tools.base import StreamOptions, ToolSpec
from ridgeline.text.tools.choose import choose_dialect

pytestmark = pytest.mark.real_model
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": -5, "maximum": 300},
        "city": {"enum": ["北京", "Zürich", "🙂"]},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
MASK_BUDGET_S = 0.05


@pytest.fixture(scope="module", params=["smollm2", "gemma3-270m"])
def world(request: pytest.FixtureRequest) -> tuple[Words, GrammarCompiler]:
    words = open_words(open_checkpoint(model_file(request.param)))
    compiler = GrammarCompiler(words.tokenizer, words.stop_ids)
    compiler.warm()
    return words, compiler


def draw(grammar: Grammar, words: Words, seed: int, limit: int = 300) -> tuple[str, bool]:
    """Any allowed token, every second time one of the shortest."""
    state, rng, ids = grammar.start(), random.Random(seed), []
    while len(ids) < limit:
        options = bits(state.allowed())
        assert options.max() < words.vocab_size
        some = [int(options[rng.randrange(len(options))]) for _ in range(8 if rng.random() < 0.5 else 1)]
        ids.append(min(some, key=lambda i: len(words.tokenizer.token_bytes(i))))
        if state.accept(ids[-1]):
            break
    raw = b"".join(words.tokenizer.token_bytes(i) for i in ids if i not in words.stop_ids)
    return raw.decode("utf-8") if state.done else "", state.done


def test_random_draws_validate(world: tuple[Words, GrammarCompiler]) -> None:
    words, compiler = world
    grammar, validator, ended = compiler.compile(GrammarSpec("json_schema", PERSON)), Draft202012Validator(PERSON), 0
    for seed in range(40):
        text, done = draw(grammar, words, seed)
        ended += done
        assert not done or validator.is_valid(loads(text))
    assert ended > 20


def test_a_forced_call(world: tuple[Words, GrammarCompiler]) -> None:
    words, compiler = world
    tool = ToolSpec("save_person", parameters=PERSON)
    dialect = choose_dialect(words.tokenizer.chat_template)
    grammar, ended = compile_calls(compiler, dialect, (tool,), parallel=False), 0
    for seed in range(20):
        text, done = draw(grammar, words, seed)
        ended += done
        if done:
            (call,) = parse_reply(dialect.stream(StreamOptions((tool,))), text).calls
            assert call.name == "save_person" and Draft202012Validator(PERSON).is_valid(loads(call.arguments))
    assert ended > 5


def test_masks_are_quick(world: tuple[Words, GrammarCompiler]) -> None:
    _, compiler = world
    compiler.compile(GrammarSpec("json_object"))
    began = time.perf_counter()
    mask = compiler.compile(GrammarSpec("json_schema", {**PERSON, "title": "not compiled before"})).start().allowed()
    assert time.perf_counter() - began < 5 * MASK_BUDGET_S and np.any(mask)
