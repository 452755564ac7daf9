"""What a ladder climbs: its workload and its rungs, as data. Each rung adds one thing to the one before.

Knows which options a rung needs. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ridgeline.bench.corpus import Corpus
from ridgeline.errors import within
from ridgeline.text.tokenizer import Tokenizer

Domain = Literal["prose", "code"]


@dataclass(frozen=True, slots=True)
class Load:
    """requests prompts of `shared` common tokens and `own` different ones; answers of `output` tokens, or from `output_low` on, evenly
    spread and shuffled; slots: sequences at once from the first batch on. domain: what the text is cut from."""

    requests: int = 10
    shared: int = 1656
    own: int = 32
    output: int = 50
    output_low: int = 0
    slots: int = 10
    domain: Domain = "prose"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low in (("requests", 1), ("shared", 0), ("own", 1), ("output", max(2, self.output_low)), ("slots", 1)):
            within(f"--{name}", getattr(self, name), low, 1 << 20)

    @property
    def longest(self) -> int:
        return self.shared + self.own + self.output

    @property
    def outputs(self) -> list[int]:
        """Tokens of each answer."""
        if not self.output_low:
            return [self.output] * self.requests
        spread = np.linspace(self.output_low, self.output, self.requests).round().astype(int)
        return [int(n) for n in np.random.default_rng(self.seed).permutation(spread)]

    def __str__(self) -> str:
        lengths = f"{self.output_low} to {self.output}" if self.output_low else f"{self.output}"
        return (
            f"{self.requests} prompts of {self.shared} shared + {self.own} own tokens, {lengths} out, {self.slots} at once, {self.domain}"
        )


PRESETS: Mapping[str, Load] = {
    "workshop": Load(), "workshop-quarter": Load(shared=414), "mixed": Load(32, 256, 64, 112, 8, 8), "code": Load(domain="code"),
    "tiny": Load(4, 40, 6, 8, 0, 4),
}  # fmt: skip


def prompts(load: Load, tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids of each prompt, BOS included where the model wants it. Same load and tokenizer, same ids."""
    rng = np.random.default_rng((load.seed, 1))
    need = 8 * (load.shared + load.requests * load.own) + 4096
    corpus = Corpus()
    text = corpus.prose(rng, need) if load.domain == "prose" else corpus.code(rng, need)
    ids = tokenizer.encode_plain(text)
    while len(ids) < load.shared + load.requests * load.own:
        ids += ids
    stem = [*tokenizer.prefix, *ids][: load.shared]
    rest = ids[load.shared :]
    own = [rest[i * load.own : (i + 1) * load.own] for i in range(load.requests)]
    for i, tail in enumerate(own):
        tail[0] = ids[i]  # every tail begins otherwise, so that nothing but the stem is shared
    return [stem + tail for tail in own]


@dataclass(frozen=True, slots=True)
class Rung:
    """wave: how many requests begin together and end before the next may begin; 0: whoever ends makes room at once. options: of the
    engine, added to those of the rungs below; engine "transformers" is another program. lossy: words may change."""

    key: str
    name: str
    engine: Literal["ridgeline", "transformers"] = "ridgeline"
    wave: Literal["one", "slots", "free"] = "free"
    options: Mapping[str, Any] = field(default_factory=dict)
    lossy: bool = False


RUNGS: tuple[Rung, ...] = (
    Rung("transformers", "transformers, one at a time", "transformers", "one"),
    Rung("one", "ridgeline, one at a time", wave="one", options={"enable_prefix_caching": False}),
    Rung("static", "static batches", wave="slots"),
    Rung("continuous", "continuous batching"),
    Rung("prefix", "+ prefix cache", options={"enable_prefix_caching": True}),
    Rung("kv_int8", "+ KV int8", options={"kv_cache_dtype": "int8"}, lossy=True),
    Rung("ngram", "+ speculation (ngram)", options={"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}}),
)


def options_of(key: str) -> dict[str, Any]:
    """Engine options of a rung: its own and those of all rungs below."""
    found: dict[str, Any] = {}
    for rung in RUNGS:
        found |= rung.options
        if rung.key == key:
            break
    return found
