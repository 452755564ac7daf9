"""`chat --show-spec`: what was guessed and true, guessed and wrong, and free behind true guesses is told apart; the words stay the same."""

from __future__ import annotations

import re

import pytest
from tests.engine.fakes import byte_tokenizer
from tests.engine.running import make_core, submit
from tests.spec.guessing import Knowing
from tests.spec.test_rollback import LIMITS, program

from ridgeline.cli.show_spec import LEGEND, Painter, summary
from ridgeline.engine.speculate import Speculator
from ridgeline.types import SamplingParams

GREEN, RED, CYAN = "\x1b[32m", "\x1b[2;31;9m", "\x1b[1;36m"
PARAMS = SamplingParams(max_tokens=40, temperature=1.0, seed=3, allowed_token_ids=tuple(range(97, 123)))


def painted(right: float, colour: bool = True) -> tuple[str, str, str]:
    """(the painted answer, the answer, the summary) with guesses of which so many come true."""
    plain = make_core(program(), limits=LIMITS)
    want = submit(plain, [1, 2, 3], PARAMS)
    while plain.busy:
        plain.step()
    core = make_core(program(), limits=LIMITS)
    asked, out = submit(core, [1, 2, 3], PARAMS), ""
    core.speculator = Speculator(Knowing(lambda seq_id: [1, 2, 3, *want.choices[0].token_ids], right, 123, 5), 4)
    painter = Painter(byte_tokenizer(), colour)
    while core.busy:
        for choice in core.step():
            out += painter.paint(choice)
    assert asked.choices[0].text == want.choices[0].text
    return out + painter.finish(), want.choices[0].text, summary(asked.choices[0])


@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
def test_each_word_has_its_colour(right: float) -> None:
    shown, text, line = painted(right)
    struck = re.findall(rf"{re.escape(RED)}(.*?)\x1b\[0m", shown, re.DOTALL)
    kept = re.sub(rf"{re.escape(RED)}.*?\x1b\[0m", "", shown, flags=re.DOTALL)
    assert re.sub(r"\x1b\[[0-9;]*m", "", kept) == text, "without the guesses that were wrong it is the answer"
    true, free = (len("".join(re.findall(rf"{re.escape(c)}(.*?)\x1b\[0m", shown, re.DOTALL))) for c in (GREEN, CYAN))
    accepted, drafted = map(int, re.findall(r"\d+", line)[:2])
    assert true == accepted and true + sum(map(len, struck)) >= accepted
    assert (accepted == 0 and free == 0 and struck) if right == 0.0 else (accepted > 5 and free > 0)
    assert not struck if right == 1.0 else drafted > accepted
    assert all(colour in LEGEND for colour in (GREEN, RED, CYAN))


def test_without_colours_it_is_the_plain_text() -> None:
    shown, text, _ = painted(0.5, colour=False)
    assert shown == text


def test_no_guesses_are_said_to_be_none() -> None:
    core = make_core(program(), limits=LIMITS)
    asked = submit(core, [1], SamplingParams(max_tokens=2))
    while core.busy:
        core.step()
    assert summary(asked.choices[0]) == "no guesses were made"
