"""Incremental detokenizer and stop strings: cases ST-01 and ST-03."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.text.text_samples import byte_level, sentencepiece, texts

from ridgeline.text.from_gguf import tokenizer_from_gguf
from ridgeline.text.stream import Detokenizer, StopMatcher, TextStream
from ridgeline.text.vocabulary import byte_to_char

BYTES, SPM = tokenizer_from_gguf(byte_level()), tokenizer_from_gguf(sentencepiece())
BOTH = pytest.mark.parametrize("tokenizer", [BYTES, SPM], ids=["bytes", "spm"])


def byte_ids(tokenizer: Any, raw: bytes) -> list[int]:
    """One token per byte, as a model that spells a character byte by byte."""
    if tokenizer is BYTES:
        tokens = [tokenizer.vocabulary.text(id) for id in range(tokenizer.size)]
        return [tokens.index(byte_to_char()[byte]) for byte in raw]
    return [3 + byte for byte in raw]


def deltas(tokenizer: Any, ids: list[int], **options: Any) -> list[str]:
    stream = Detokenizer(tokenizer, **options)
    return [*(stream.push(id) for id in ids), stream.finish()]


@BOTH
@pytest.mark.parametrize("text", ["\U0001fae0\u9f9c", "a\U0001fae0 b", "e\u0301\u0308", "👩‍👩‍👧", "\ufffd!"])
def test_st01_characters_byte_by_byte(tokenizer: Any, text: str) -> None:
    ids = byte_ids(tokenizer, text.encode())
    found = deltas(tokenizer, ids)
    assert "".join(found) == text == tokenizer.decode(ids)
    for delta in found:
        assert "\ufffd" not in delta or "\ufffd" in text
        assert len(delta) <= 1


@BOTH
def test_st01_space_after_a_broken_character_and_stop_in_the_middle(tokenizer: Any) -> None:
    ids = [*byte_ids(tokenizer, "\U0001fae0".encode()[:2]), *tokenizer.encode(" user", add_special=False, parse_special=False)]
    found = deltas(tokenizer, ids)
    assert "".join(found) == tokenizer.decode(ids) == "\ufffd user"
    assert found[:2] == ["", ""]
    cut = [*byte_ids(tokenizer, b"ok"), *byte_ids(tokenizer, "龜".encode()[:2])]
    found = deltas(tokenizer, cut)
    assert found == ["o", "k", "", "", "\ufffd"]
    assert tokenizer.decode(cut) == "ok\ufffd"


def test_special_tokens_are_skipped_or_shown() -> None:
    ids = [1, *BYTES.encode("Hello", add_special=False, parse_special=False), 2]
    assert "".join(deltas(BYTES, ids)) == "Hello"
    assert "".join(deltas(BYTES, ids, skip_special=False)) == "<|im_start|>Hello<|im_end|>"


def test_first_space_of_sentencepiece() -> None:
    ids = SPM.encode("the user", add_special=False, parse_special=False)
    assert "".join(deltas(SPM, ids)) == "the user"
    assert "".join(deltas(SPM, ids, strip_first_space=False)) == " the user" == SPM.decode(ids, strip_first_space=False)
    assert "".join(deltas(SPM, [1, *ids])) == "the user" == SPM.decode([1, *ids])


@BOTH
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_joined_deltas_are_the_decoded_text(tokenizer: Any, data: st.DataObject) -> None:
    """Any ids at all, padded ones and broken bytes included."""
    ids = data.draw(st.lists(st.integers(0, tokenizer.size + 3), max_size=40))
    skip = data.draw(st.booleans())
    found = deltas(tokenizer, ids, skip_special=skip)
    assert "".join(found) == tokenizer.decode(ids, skip_special=skip)
    for delta in found:
        delta.encode("utf-8")


@BOTH
def test_joined_deltas_of_real_texts(tokenizer: Any) -> None:
    for text in texts(200, seed=3):
        ids = tokenizer.encode(text, add_special=True, parse_special=False)
        found = deltas(tokenizer, ids)
        assert "".join(found) == tokenizer.decode(ids)
        assert all("\ufffd" not in delta for delta in found)


def run(chunks: list[str], stops: list[str], **options: Any) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops, **options)
    sent = [matcher.push(chunk) for chunk in chunks]
    sent.append(matcher.finish())
    return sent, matcher.matched


@pytest.mark.parametrize(
    ("chunks", "stops", "text", "matched"),
    [
        (["The quick br", "own", " fo", "x jumps"], ["own fox"], "The quick br", "own fox"),
        (["a", "a", "a", "b"], ["aab"], "a", "aab"),
        (["xown fox"], ["own", "own fox"], "x", "own"),
        (["xow", "n fox"], ["own fox", "own"], "x", "own"),
        (["own fo"], ["own fox"], "own fo", None),
        (["own fo", "", "r"], ["own fox"], "own for", None),
        (["北", "京a"], ["京"], "北", "京"),
        (['{"a": "st', 'op"}'], ["stop"], '{"a": "', "stop"),
        (["abcd"], ["bcd", "abc"], "", "abc"),
        (["zxab"], ["ab", "xab"], "z", "xab"),
        (["abab", "ac"], ["ababac"], "", "ababac"),
        (["aaaa"], [], "aaaa", None),
    ],
)
def test_st03_stop_strings(chunks: list[str], stops: list[str], text: str, matched: str | None) -> None:
    sent, found = run(chunks, stops)
    assert ("".join(sent), found) == (text, matched)


def test_st03_only_what_could_become_a_stop_is_held_back() -> None:
    sent, _ = run(["The quick br", "own", " fo", "r you"], ["own fox"])
    assert sent == ["The quick br", "", "", "own for you", ""]
    sent, _ = run(["hello w", "orld"], ["fox"])
    assert sent == ["hello w", "orld", ""]


def test_st03_text_after_a_match_is_never_sent() -> None:
    matcher = StopMatcher(["x"])
    assert [matcher.push("axb"), matcher.push("c"), matcher.finish()] == ["a", "", ""]


def test_include_stop() -> None:
    assert run(["The br", "own", " fo", "x jumps"], ["own fox"], include_stop=True)[0] == ["The br", "", "", "own fox", ""]


def test_unchecked_text_passes() -> None:
    matcher = StopMatcher(["ab"])
    assert matcher.push("ab", may_stop=False) == "ab"
    assert matcher.push("xab") == "x"


def first_by_definition(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Read character by character; the first that is complete cuts, the longest of those."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            longest = max(done, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(max_examples=400, deadline=None)
@given(
    text=st.text(alphabet="ab北", max_size=30),
    stops=st.lists(st.text(alphabet="ab北", min_size=1, max_size=5), max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=8),
    include=st.booleans(),
)
def test_any_split_gives_the_same_cut(text: str, stops: list[str], cuts: list[int], include: bool) -> None:
    expected, stop = first_by_definition(text, stops)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    chunks = [text[start:end] for start, end in pairwise(places)]
    matcher = StopMatcher(stops, include_stop=include)
    sent = ""
    for chunk in chunks:
        sent += matcher.push(chunk)
        seen = text[: len(sent)]
        assert sent == seen or matcher.matched is not None
    sent += matcher.finish()
    assert (sent, matcher.matched) == (expected + (stop or "" if include else ""), stop)


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="ab", max_size=40), stop=st.text(alphabet="ab", min_size=1, max_size=6))
def test_no_more_is_held_than_needed(text: str, stop: str) -> None:
    matcher = StopMatcher([stop])
    sent = matcher.push(text)
    if matcher.matched is None:
        held = text[len(sent) :]
        candidates = [size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])]
        assert len(held) == (candidates[0] if candidates else 0)


@BOTH
def test_text_stream_is_whole_and_streamed_alike(tokenizer: Any) -> None:
    draw = random.Random(5)
    for text in texts(100, seed=9):
        stops = [text[at : at + draw.randint(1, 4)] for at in draw.choices(range(len(text)), k=2)]
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        stream = TextStream(tokenizer, stops, strip_first_space=not text.startswith(" "))
        sent = "".join(stream.push(id) for id in ids) + stream.finish()
        assert (sent, stream.matched) == first_by_definition(text, stops)
        assert stream.text == sent


@BOTH
def test_stop_inside_a_character_spelled_in_bytes(tokenizer: Any) -> None:
    stream = TextStream(tokenizer, ["龜"])
    ids = byte_ids(tokenizer, "a龜b".encode())
    assert "".join(stream.push(id) for id in ids) + stream.finish() == "a"
    assert stream.matched == "龜"


def test_stop_that_completes_at_the_end() -> None:
    stream = TextStream(BYTES, ["\ufffd"])
    assert "".join(stream.push(id) for id in byte_ids(BYTES, b"a\xf0\x9f")) + stream.finish() == "a"
    assert stream.matched == "\ufffd"
