"""Tokenizers and chat templates against `transformers`: same ids, same bytes. Vocabularies are trained here; nothing is downloaded."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.text.replies import render_chat

transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed")
sentencepiece = pytest.importorskip("sentencepiece", reason="the oracle extra is not installed")

from tests.oracle.model_files import model_file
from tests.text.text_samples import byte_level, texts
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE

from ridgeline.formats.gguf import read_gguf
from ridgeline.text.from_folder import tokenizer_from_folder
from ridgeline.text.from_gguf import tokenizer_from_gguf
from ridgeline.text.messages import normalize_messages, normalize_tools

pytestmark = pytest.mark.oracle
ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "text" / "data"
USER_DEFINED = ["<think>", "<tag>"]
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    """Lines of this repository (code and prose) and hard texts of every kind."""
    lines: list[str] = []
    for path in sorted(ROOT.glob("src/ridgeline/**/*.py"))[:40] + sorted(ROOT.glob("docs/**/*.md")) + [ROOT / "LICENSE"]:
        lines += path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [*lines[:2500], *("".join(lines[at : at + 5]) for at in range(0, 2500, 5)), *texts(1500, seed=11)]


def differing(corpus: list[str], ours: Any, theirs: Any) -> list[str]:
    return [text for text in corpus if ours(text) != theirs(text)]


@pytest.fixture(scope="module")
def trained(corpus: list[str]) -> Tokenizer:
    """A byte-level BPE vocabulary of 1500 tokens, trained without any cut at digits so that every cut matters."""
    full = Tokenizer(BPE())
    full.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=CONTROL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    full.train_from_iterator([*corpus, "1 12 123 1234 2024 100 000 10 20 30 40 12 34 56" * 20], trainer)
    return full


def as_metadata(full: Tokenizer, pre: str) -> tuple[dict[str, Any], dict[str, int], list[tuple[str, str]]]:
    model = json.loads(full.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    tokens = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    metadata = byte_level(
        pre,
        **{
            "tokenizer.ggml.tokens": [*tokens, "<think>"],
            "tokenizer.ggml.token_type": [3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL)) + [4],
            "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        },
    )
    return metadata, {**model["vocab"], "<think>": len(tokens)}, merges


def official(pre: str, vocab: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    """The tokenizer that `transformers` builds for a pre-tokenizer name, with the vocabulary given."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    full = Tokenizer(BPE(vocab=vocab, merges=merges, ignore_merges=pre in ("llama-bpe", "tekken")))
    full.decoder = decoders.ByteLevel()
    if pre in GGUF_PRE_TOKENIZER_SPLITS:
        cut = pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[pre]), behavior="isolated")
        full.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    elif pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        full.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    else:
        full.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre in ("qwen2", "qwen35"):
        full.normalizer = normalizers.NFC()
    full.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    full.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return full


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "tekken", "gpt-4o", "dbrx"])
def test_byte_level_ids(pre: str, trained: Tokenizer, corpus: list[str], tmp_path: Path) -> None:
    metadata, vocab, merges = as_metadata(trained, pre)
    hf = transformers.PreTrainedTokenizerFast(tokenizer_object=official(pre, vocab, merges), eos_token="<|im_end|>")
    ours = tokenizer_from_gguf(metadata)
    assert not differing(corpus, lambda text: ours.encode(text, add_special=True, parse_special=True), hf.encode)
    hf.save_pretrained(tmp_path)
    folder = tokenizer_from_folder(tmp_path)
    assert not differing(corpus, lambda text: folder.encode(text, add_special=True, parse_special=True), hf.encode)
    assert not differing(corpus, lambda text: ours.decode(ours.encode(text, add_special=False, parse_special=False)),
                         lambda text: hf.decode(hf.encode(text, split_special_tokens=True), skip_special_tokens=True))  # fmt: skip


def test_qwen2_class(trained: Tokenizer, corpus: list[str]) -> None:
    metadata, vocab, merges = as_metadata(trained, "qwen2")
    hf = transformers.Qwen2Tokenizer(vocab=vocab, merges=merges, unk_token="<|endoftext|>", eos_token="<|im_end|>")
    hf.add_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL], special_tokens=True)
    hf.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    ours = tokenizer_from_gguf(metadata)
    assert not differing(corpus, lambda text: ours.encode(text, add_special=False, parse_special=True), hf.encode)


@pytest.fixture(scope="module")
def spm_folder(corpus: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spm")
    lines = [line for text in corpus for line in text.replace("\x00", "").splitlines() if line.strip()]
    (folder / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "lines.txt"), model_prefix=str(folder / "tokenizer"), vocab_size=1800, model_type="bpe", byte_fallback=True,
        character_coverage=0.995, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
        user_defined_symbols=USER_DEFINED, num_threads=2, minloglevel=2, max_sentence_length=100_000,
    )  # fmt: skip
    return folder


def spm_metadata(folder: Path, **more: Any) -> dict[str, Any]:
    """The metadata that a GGUF converter writes for a SentencePiece model."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    ids = range(model.get_piece_size())
    kinds = [
        2
        if model.is_unknown(id)
        else 3
        if model.is_control(id)
        else 6
        if model.is_byte(id)
        else 4
        if model.id_to_piece(id) in USER_DEFINED
        else 1
        for id in ids
    ]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(id) for id in ids],
        "tokenizer.ggml.scores": [model.get_score(id) for id in ids],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **more,
    }


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("prefix", [True, False])
def test_llama_tokenizer_ids(prefix: bool, spm_folder: Path, corpus: list[str], tmp_path: Path) -> None:
    """`LlamaTokenizer` on the same pieces and scores, case TK-01's texts included; and its saved folder."""
    metadata = spm_metadata(spm_folder, **{"tokenizer.ggml.add_space_prefix": prefix})
    hf = llama_tokenizer(metadata, prefix)
    ours = tokenizer_from_gguf(metadata)
    cases = ["<s>user", "<s> user", "a<s>b", "a<s> b", " leading", "  two", "", " ", "<think>x", "a <tag> b", "</s>"]
    assert not differing([*cases, *corpus], lambda text: ours.encode(text, add_special=False, parse_special=True), hf.encode)
    hf.save_pretrained(tmp_path)
    folder = tokenizer_from_folder(tmp_path)
    assert not differing([*cases, *corpus], lambda text: folder.encode(text, add_special=False, parse_special=True), hf.encode)
    for text in corpus[::7]:
        ids = hf.encode(text)
        assert ours.decode(ids) == folder.decode(ids) == hf.decode(ids, skip_special_tokens=True)


def llama_tokenizer(metadata: dict[str, Any], prefix: bool) -> Any:
    from transformers.tokenization_utils_base import generate_merges

    tokens = metadata["tokenizer.ggml.tokens"]
    vocab = {token: id for id, token in enumerate(tokens)}
    merges = generate_merges(vocab, dict(zip(tokens, metadata["tokenizer.ggml.scores"], strict=True)))
    hf = transformers.LlamaTokenizer(vocab=vocab, merges=merges, add_prefix_space=prefix)
    kinds = metadata["tokenizer.ggml.token_type"]
    hf.add_tokens([AddedToken(tokens[id], special=False, normalized=False) for id in range(len(tokens)) if kinds[id] == 4])
    return hf


def test_sentencepiece_itself(spm_folder: Path, corpus: list[str]) -> None:
    """The library that trained the vocabulary cuts plain words the same way."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(spm_folder / "tokenizer.model"))
    ours = tokenizer_from_gguf(spm_metadata(spm_folder))
    # It sees no control tokens in text, and puts its first mark before a leading space or tag too; transformers does not.
    odd = re.compile(r"\A[ ]|\A<t|\x00|\u2581|</?s>")
    plain = [text for text in corpus if text and not odd.search(text)]
    wrong = differing(plain, lambda text: ours.encode(text, add_special=False, parse_special=False), model.encode)
    print(f"sentencepiece: {len(plain) - len(wrong)} of {len(plain)} equal")
    assert not wrong


@pytest.mark.real_model
@pytest.mark.long
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("alias", ["smollm2", "gemma3-270m"])
def test_real_files(alias: str, corpus: list[str]) -> None:
    """The GGUF loader of `transformers` on the real files.

    SmolLM2: that loader leaves out the cut at digits that the model's own tokenizer.json makes; texts where it matters are left out.
    """
    path = model_file(alias)
    hf = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    ours = tokenizer_from_gguf(read_gguf(path).metadata)
    chosen = [text for text in corpus if alias != "smollm2" or not re.search(r"\s\s\d|\s[½²③Ⅷ٣]|[\n\t\u3000\u00a0]\d", text)]
    wrong = differing(chosen, lambda text: ours.encode(text, add_special=True, parse_special=True), hf.encode)
    print(f"{alias}: {len(chosen) - len(wrong)} of {len(chosen)} texts have the ids of transformers")
    assert not wrong
    assert not differing(
        chosen[::5], lambda text: ours.decode(hf.encode(text)), lambda text: hf.decode(hf.encode(text), skip_special_tokens=True)
    )


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Weather of a place, e.g. <北京> & "Köln"',
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": "Name"},
                    "days": {"type": "array", "items": {"type": "integer"}, "title": "Days"},
                    "unit": {"type": ["string", "null"], "enum": ["C", "F"]},
                },
                "required": ["place"],
            },
        },
    }
]
USER, REPLY = {"role": "user", "content": "  What is 2 < 3 & 'x'? 🫠\n"}, {"role": "assistant", "content": " It is <b>true</b>. "}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {"name": "get_weather", "arguments": {"place": "Köln", "days": [1, 2], "deep": {"a": None}}},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": '{"t": 21.5, "s": "sunny & <warm>"}'}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [USER],
    "system": [{"role": "system", "content": "Be brief. /no_think "}, USER],
    "turns": [{"role": "system", "content": "S"}, USER, REPLY, USER, REPLY, USER],
    "answered": [USER, REPLY],
    "call": [USER, CALL, RESULT, {"role": "assistant", "content": "21.5 degrees"}, USER],
    "calls": [USER, CALL, RESULT, RESULT, {"role": "user", "content": "and?"}],
    "thinking": [
        USER,
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."},
        USER,
        {"role": "assistant", "content": "ok", "reasoning": "why"},
    ],
    "wrapped": [USER, REPLY, {"role": "user", "content": "<tool_response>x</tool_response>"}],
    "odd": [USER, USER, {"role": "ipython", "content": "1"}],
}


@pytest.mark.parametrize("name", sorted(path.stem for path in DATA.glob("*.jinja")))
def test_templates_render_the_same_bytes(name: str) -> None:
    """Every conversation, with and without tools, generation prompt and template variables; errors in both or in neither."""
    source = (DATA / f"{name}.jinja").read_text(encoding="utf-8")
    ours = tokenizer_from_gguf(byte_level(**{"tokenizer.ggml.bos_token_id": 0}))
    hf = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()), **ours.special_tokens)
    rendered = 0
    for messages in CONVERSATIONS.values():
        for tools in (None, TOOLS):
            for more in ({}, {"enable_thinking": False, "date_string": "1 May", "reasoning_mode": "/no_think"}):
                for prompt in (True, False):
                    try:
                        expected = hf.apply_chat_template(
                            normalize_messages(messages),
                            tools=normalize_tools(tools),
                            chat_template=source,
                            tokenize=False,
                            add_generation_prompt=prompt,
                            **more,
                        )
                    except Exception:
                        with pytest.raises(Exception, match="chat template"):
                            render_chat(ours, messages, tools, prompt, template=source, **more)
                        continue
                    assert render_chat(ours, messages, tools, prompt, template=source, **more) == expected
                    rendered += 1
    assert rendered >= 16


PIECES = [
    "{% for m in messages %}{% if loop.index0==1 %}{% break %}{% endif %}{{m.content}}{% endfor %}",
    "{{ strftime_now('%Y') }}",
    "{{ {'a':'<b> 北京 & \\'x\\''} | tojson }}",
    "{{ messages | tojson(indent=2) }}",
    "{% generation %}x{% endgeneration %}",
    "  {% if true %}\n  a \n  {%- endif %}\n b {{- ' c ' -}} d\n\n",
    "{{ messages[0] }}{{ [1, 'a', none, 1.5] }}{{ {'k': (1,)} }}",
    "{% for k, v in messages[0] | dictsort %}{{ k }}:{{ v }};{% endfor %}{{ messages | length }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join('|') }}",
    "{% macro f(a, b=2) %}<{{ a }}{{ b }}{{ caller() if caller }}>{% endmacro %}{% call f(1) %}z{% endcall %}{{ f(b=3, a='é') }}",
    "{{ 'a b c'.split() | first }}{{ 'abc' | reverse }}{{ 'x' * 3 }}{{ 7 / 2 }}{{ 'A' ~ 1 ~ none ~ [2] }}{{ 'ab' + 'c' }}",
    "{{ '%05.1f|%s' % (2.5, 'x') }}{{ '{:>4}|{a}'.format(1, a='b') }}{{ 'abc'[::-1] }}{{ 'a' in 'abc' }}{{ not [] }}{{ 2 ** 5 % 7 }}",
    "{% set ns = namespace(a=1) %}{% for i in range(3) %}{% set ns.a = ns.a * 2 %}{% endfor %}{{ ns.a }}{{ ns }}",
    "{{ nothing }}{{ nothing | default('d') }}{{ 'y' if nothing is defined else 'n' }}{{ messages[5] }}",
    "{{ '<&>' | escape }}{{ '<&>' | e | upper }}{{ '<b>' | safe }}{{ 'a\nb' | indent(2, true) }}{{ 'x y' | title | replace('X', 'q') }}",
]


@pytest.mark.parametrize("source", PIECES, ids=[str(place) for place in range(len(PIECES))])
def test_template_features_render_the_same_bytes(source: str) -> None:
    ours = tokenizer_from_gguf(byte_level())
    hf = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()), **ours.special_tokens)
    messages = normalize_messages(CONVERSATIONS["turns"])
    assert render_chat(ours, messages, template=source) == hf.apply_chat_template(
        messages, chat_template=source, tokenize=False, add_generation_prompt=True
    )
