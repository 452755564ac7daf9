"""Workloads as data: what each use of a model asks, promises, and which figure it is about. Makes sessions from it, sends nothing.

A session is one or more turns; every later turn follows the answers before it, echoed as the model wrote them. Arrival times and uniform
lengths come from `workloads`, which drives the simulator with the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from ridgeline.bench.client_metrics import Slo
from ridgeline.bench.corpus import Corpus
from ridgeline.bench.workloads import Lengths, bursts, poisson, trace_file
from ridgeline.errors import UserError, one_of

Endpoint = Literal["chat", "completions"]
MAX_LENGTH = 1 << 20


@dataclass(frozen=True, slots=True)
class Mix:
    """Token counts, lognormal: `median`, `sigma` of the logarithm (0: always the median), cut to low..high."""

    median: int
    sigma: float = 0.0
    low: int = 1
    high: int = MAX_LENGTH

    @property
    def longest(self) -> int:
        return self.high if self.sigma else self.median

    def draw(self, rng: np.random.Generator, scale: float) -> int:
        value = self.median * float(np.exp(self.sigma * rng.standard_normal()))
        return max(1, round(min(max(value, self.low), self.high) * scale))


@dataclass(frozen=True, slots=True)
class Preset:
    """One use of a model. shared: tokens that sessions have in common, one of `variants` texts; turns, n: answers per prompt.

    metric: the figure (of `client_metrics`) that it is about; concurrency: default loads, 0 for all at once.
    """

    name: str
    about: str
    metric: str
    why: str
    arrival: str
    prompt: Mix
    output: Mix
    slo: Slo
    concurrency: tuple[int, ...]
    requests: int
    shared: int = 0
    variants: int = 1
    turns: int = 1
    n: int = 1
    text: Literal["prose", "code"] = "prose"
    endpoint: Endpoint = "chat"


PRESETS: Mapping[str, Preset] = {p.name: p for p in (
    Preset(
        "chat", "people who talk with a model; lengths spread like ShareGPT's (mean 161 in, 338 out before the cuts)", "goodput_s",
        "how many users are served within a reader's patience", "users who each ask again at once; --rate makes it Poisson",
        Mix(88, 1.1, 4, 1024), Mix(225, 0.9, 8, 1024), Slo(1.0, 0.100), (1, 4, 16), 32,
    ),
    Preset(
        "rag", "questions about few long documents that all share", "ttft_ms", "a reader waits for the first word",
        "users who each ask again at once", Mix(48, 0.5, 8, 256), Mix(64, 0.5, 8, 256), Slo(2.0, 0.100), (1, 4), 24,
        shared=1500, variants=3,
    ),
    Preset(
        "agents", "N branches of one role prompt at once; each then reviews and rates its own answer from 1 to 10", "requests_s",
        "all branches must end before the agent goes on, and most of what they read is shared", "all branches at one moment",
        Mix(40, 0.3, 8, 128), Mix(96), Slo(2.0, 0.100), (0,), 16, shared=1000, turns=2,
    ),
    Preset(
        "long", "one long prompt, a short answer: reading dominates", "ttft_ms", "how fast a machine reads", "one after the other",
        Mix(3000, 0.2, 500, 12000), Mix(32), Slo(10.0, 0.200), (1,), 6,
    ),
    Preset(
        "code", "completion of a source file while its author types", "ttft_ms", "a completion that comes late is not read",
        "bursts of keystrokes: a few at once", Mix(400, 0.6, 64, 2000), Mix(24, 0.4, 4, 64), Slo(0.5, 0.050), (1, 4), 24,
        text="code", endpoint="completions",
    ),
    Preset(
        "batch", "offline: nobody waits, every prompt is known beforehand", "total_tok_s", "tokens per hour of the machine",
        "everything at once", Mix(300, 0.4, 32, 2000), Mix(64, 0.4, 8, 256), Slo(), (0,), 64,
    ),
    Preset(
        "eval", "questions of a benchmark behind the same worked examples; one token of each answer is looked at", "requests_s",
        "questions per hour, whoever waits; what all begin with is read once where it is cached",
        "all questions at one moment, answers of one token",
        Mix(60, 0.5, 8, 256), Mix(1), Slo(), (0,), 64, shared=600, endpoint="completions",
    ),
    Preset(
        "rl", "rollouts: n samples of each prompt, as long as they may get", "output_tok_s", "samples per hour; the longest is waited for",
        "all prompts at once, n answers each", Mix(120, 0.4, 16, 512), Mix(256), Slo(), (0,), 8, n=8,
    ),
)}  # fmt: skip


def overview() -> list[dict[str, str | int | None]]:
    """Every preset in a row: what it optimises, what it promises (ms, None for no promise), its lengths and how it arrives."""

    def length(mix: Mix) -> str:
        return f"{mix.median}" + (f" ({mix.low} to {mix.high})" if mix.sigma else "")

    def ms(seconds: float | None) -> int | None:
        return None if seconds is None else round(seconds * 1e3)

    return [
        {
            "workload": p.name, "optimises": p.metric, "SLO TTFT ms": ms(p.slo.ttft_s), "SLO TPOT ms": ms(p.slo.tpot_s),
            "prompt tokens": length(p.prompt), "shared": p.shared, "answer tokens": length(p.output), "turns": p.turns, "n": p.n,
            "arrival": p.arrival,
        }
        for p in PRESETS.values()
    ]  # fmt: skip


def longest_session(p: Preset, scale: float) -> float:
    """Tokens it can come to: answers, prompts that the tokenizer cuts a quarter finer than was thought, and room for the template."""
    return scale * (1.25 * (p.shared + p.prompt.longest) + p.turns * p.output.longest) + 64 * p.turns + 192


def fitted(p: Preset, limit: int, scale: float) -> Preset:
    """The preset with prompts that a model of `limit` tokens can hold with all answers. Raises `UserError` when next to nothing is left."""
    most = int((limit - longest_session(replace(p, prompt=Mix(0)), scale)) / (1.25 * scale))
    if most < 8:
        text = f"workload {p.name} needs more than the model's {limit} tokens"
        raise UserError(text, field="--scale", value=scale, limit=limit, remedy="use a smaller --scale, --input-len or --output-len")
    if p.prompt.longest <= most:
        return p
    return replace(p, prompt=replace(p.prompt, median=min(p.prompt.median, most), low=min(p.prompt.low, most), high=most))


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says, and how many tokens may answer."""

    text: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Session:
    """One conversation. arrival_s: of its first turn in an open loop, from the beginning of the cell."""

    id: str
    system: str
    turns: tuple[Turn, ...]
    n: int = 1
    arrival_s: float = 0.0

    @property
    def requests(self) -> int:
        return len(self.turns)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What decides the text of a workload, all of it recorded. characters: per token of the served model's tokenizer.

    salt: begins every prompt, so that no run finds the cache of another; the same salt and seed ask the same again.
    """

    preset: Preset
    requests: int
    seed: int = 0
    salt: str = ""
    characters: float = 4.2
    scale: float = 1.0


def preset(name: str) -> Preset:
    """Raises `UserError` naming those that exist."""
    one_of("--workload", name, PRESETS)
    return PRESETS[name]


def sessions(recipe: Recipe, corpus: Corpus) -> list[Session]:
    """`requests` sessions of the preset (of `turns` requests each)."""
    p, rng = recipe.preset, np.random.default_rng([recipe.seed, len(recipe.preset.name)])
    write = corpus.code if p.text == "code" else corpus.prose
    size = recipe.characters
    salt = f"[{recipe.salt}] " if recipe.salt else ""
    common = [""] * p.variants
    if p.shared:
        length = round(p.shared * recipe.scale * size)
        common = [_SYSTEM.get(p.name, "") + write(np.random.default_rng([recipe.seed, i, 7]), length) for i in range(p.variants)]
    made = []
    for i in range(recipe.requests):
        prompt, output = p.prompt.draw(rng, recipe.scale), p.output.draw(rng, recipe.scale)
        shared = common[i % p.variants]
        # Where sessions share nothing, each has a mark of its own, so that nothing but the template's head can be found in a cache.
        own = "" if shared else (f"[{recipe.salt}.{i}] " if recipe.salt else "")
        first = _OPENING.get(p.name, "").format(i=i + 1) + write(rng, round(prompt * size))
        turns = [Turn(own + first, output), *(Turn(_REVIEW, output) for _ in range(p.turns - 1))]
        made.append(Session(f"s{i}", salt + shared if shared else "", tuple(turns), p.n))
    return made


_SYSTEM = {
    "agents": "You are one of several reviewers of a project. Read the notes below, then do exactly what is asked.\n\n",
    "rag": "Answer from this document only.\n\n", "eval": "Answer each question with one letter, as in these examples.\n\n",
}
_OPENING = {
    "agents": "Branch {i}: propose one improvement that nobody else would, for this case. ",
    "rag": "What does the document say about this? ", "eval": "Question {i}: ",
    "chat": "", "long": "Summarise the following text.\n\n",
}  # fmt: skip
_REVIEW = "Review your answer above as a strict colleague would, and rate it from 1 to 10."


def timed(made: Sequence[Session], rate: float, burst: int, seed: int) -> list[Session]:
    """The same sessions with arrival times: Poisson of `rate` sessions/s, or groups of `burst` at once at the same mean rate."""
    one = Lengths(1, 1)
    loop = bursts(len(made), rate, burst, one, seed) if burst > 1 else poisson(len(made), rate, one, seed)
    return [replace(s, arrival_s=j.arrival_s) for s, j in zip(made, loop.start(), strict=True)]


def traced(path: Path, corpus: Corpus, salt: str) -> list[Session]:
    """Sessions of a trace file (the simulator's format), a word a token: prompts of one prefix_id begin alike. Raises `FileFormatError`."""
    made = []
    vocabulary = np.array(corpus.words)
    for job in trace_file(path).start():
        text = " ".join(vocabulary[job.prompt % len(vocabulary)])
        made.append(Session(job.id, "", (Turn((f"[{salt}] " if salt else "") + text, job.output),), arrival_s=job.arrival_s))
    return made
