"""Small vocabularies as GGUF metadata, and texts that are hard to tokenize. No downloads, no training."""

from __future__ import annotations

import random
from typing import Any

from ridgeline.text.vocabulary import SPACE, byte_to_char

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>")
USER_DEFINED = ("<think>", "</think>", "<tool_call>")
WORDS = ("Hello", " world", " the", " user", "user", " fox", " quick", "123", "\n\n", "   ", " é", "北京", "🫠")


def byte_level(pre: str = "smollm", **more: Any) -> dict[str, Any]:
    """Byte-level BPE: control tokens, the 256 bytes, whatever it takes to merge WORDS, then user-defined tokens."""
    table = byte_to_char()
    tokens = [*CONTROL, *(table[byte] for byte in range(256))]
    merges: list[str] = []
    for word in WORDS:
        pieces = [table[byte] for byte in word.encode()]
        while len(pieces) > 1:
            left, right, *rest = pieces
            pieces = [left + right, *rest]
            if left + right not in tokens:
                tokens.append(left + right)
                merges.append(f"{left} {right}")
    types = [3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL)) + [4] * len(USER_DEFINED)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, *USER_DEFINED],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
        **more,
    }


SPM_PIECES = (
    "tw", "two", f"{SPACE}two", f"{SPACE}t", "he", f"{SPACE}the", "us", "er", "user", f"{SPACE}user", "in", "ing", f"{SPACE}a", "an", "le",
    "ad", "lead", f"{SPACE}lead", "leading", f"{SPACE}leading", "aa", "aaaa",
)  # fmt: skip


def sentencepiece(**more: Any) -> dict[str, Any]:
    """SPM vocabulary: <unk> <s> </s>, 256 bytes, pieces by falling score, single characters, turn marks and a user-defined tag."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *SPM_PIECES]
    singles = [SPACE, *"abcdefghijklmnopqrstuvwxyz<>|_/.,!"]
    types = [2, 3, 3, *[6] * 256, *[1] * (len(SPM_PIECES) + len(singles)), 3, 3, 4]
    count = len(SPM_PIECES) + len(singles)
    scores = [0.0] * 259 + [-float(place) for place in range(count)] + [-1000.0] * 3
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*tokens, *singles, "<|im_start|>", "<|im_end|>", "<tag>"],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": CHATML,
        **more,
    }


_POOLS = (
    "abcdefghij XYZ",
    " \t\n\r  ",
    "0123456789 ,.",
    "的一是不了人我在有他这为之大来以",
    "あいうえおカキクケコ漢字",
    "ёжикпривет мир",
    "مرحبا بالعالم",
    "हिन्दी भाषा",
    "한국어 문장",
    "😀🫠👩\u200d👩\u200d👧🇩🇪✌🏽",
    "éèüñçÀÖ",
    "!@#$%^&*()_+-={}[]|\\:;\"'<>,.?/",
    "\u200b\u00a0\u3000\u2028\ufeff",
    "½²③Ⅷ٣",
    "e\u0301a\u0308",
)
_BITS = (
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "hello",
    "World",
    " the",
    " 123",
    "'s",
    "'LL",
    "I'll",
    "def f(x):\n    return x",
    "<|im_end|>",
    "<s>",
    "</s>",
    "<think>",
    "user",
)


def texts(count: int, seed: int = 0) -> list[str]:
    """Hard texts, the same for the same seed: scripts, digits, emoji, runs of white space, code, names of special tokens."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        parts = [draw.choice(draw.choice(_POOLS)) if draw.random() < 0.6 else draw.choice(_BITS) for _ in range(draw.randint(1, 40))]
        found.append("".join(parts))
    for size in range(1, 40):
        found += [" " * size, "\n" * size, "\t" * size, "a" + " " * size + "b", " " * size + "x", "x" + "\n" * size + " y", "1" * size]
    return found
