"""The named pre-tokenizers of GGUF files (`tokenizer.ggml.pre`) as data: how text is cut before byte-level BPE merges it.

Sources: the `tokenizer.json` of each family as the GGUF loaders of transformers and llama.cpp record it; converters give the names.
A step is a regular expression whose matches become words of their own, or DIGITS (every numeric character stands alone).
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from ridgeline.errors import UnsupportedError

DIGITS = "digits"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"
_QWEN35 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SLASH_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASH_TAIL}"
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?|\p{{N}}{{1,3}}|{_SLASH_TAIL}"
)
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# The letters of the DeepSeek-LLM cut: the alphabets with case (Latin, Greek, Cyrillic, Armenian, Georgian, ...) as its file lists them.
_CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼ"
    "ℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Steps in order; `byte_regex` ends with GPT-2's own cut; `whole_words` takes a word that is a token before any merge (ignore_merges).

    `adds_bos` is what the family does when the file has no `add_bos_token`; `nfc` composes the text first.
    """

    steps: tuple[str, ...] = ()
    byte_regex: bool = False
    whole_words: bool = False
    adds_bos: bool = False
    nfc: bool = False


_GPT2 = Recipe(byte_regex=True)
_SINGLE_DIGITS = Recipe((DIGITS,), byte_regex=True)
_LLAMA3_RECIPE = Recipe((_LLAMA3,), whole_words=True, adds_bos=True)
_QWEN2_RECIPE = Recipe((_QWEN2,), nfc=True)
_GPT4O_RECIPE = Recipe((_GPT4O,))

RECIPES: dict[str, Recipe] = {
    **dict.fromkeys(("default", "gpt-2", "gpt2", "phi-2", "olmo"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact"), _SINGLE_DIGITS),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2"), _LLAMA3_RECIPE),
    **dict.fromkeys(("dbrx", "smaug-bpe"), Recipe((_LLAMA3,))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2_RECIPE),
    "qwen35": Recipe((_QWEN35,), nfc=True),
    "tekken": Recipe((_TEKKEN,), whole_words=True, adds_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O_RECIPE),
    "deepseek-llm": Recipe(("[\r\n]", rf"\s?[{_CASED}]+", "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$", _CJK, DIGITS)),
    "deepseek-coder": Recipe(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, DIGITS)),
    "deepseek-v3": Recipe((r"\p{N}{1,3}", _KANA, _DEEPSEEK3)),
}


def recipe(name: str) -> Recipe:
    """The recipe of `tokenizer.ggml.pre`. Raises `UnsupportedError` with the name and what is supported."""
    found = RECIPES.get(name)
    if found is None:
        known = ", ".join(sorted(RECIPES))
        raise UnsupportedError(
            f"tokenizer.ggml.pre is {name!r}, a pre-tokenizer that is not supported; supported: {known}",
            field="tokenizer.ggml.pre",
            value=name,
            limit=known,
            remedy="use the model's Hugging Face folder (tokenizer.json), or a file converted with a known pre-tokenizer",
        )
    return found


def build(recipe: Recipe) -> PreTokenizer:
    """The `tokenizers` object of a recipe."""
    steps: list[PreTokenizer] = [
        pre_tokenizers.Digits(individual_digits=True) if step == DIGITS else pre_tokenizers.Split(Regex(step), behavior="isolated")
        for step in recipe.steps
    ]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=recipe.byte_regex)])
