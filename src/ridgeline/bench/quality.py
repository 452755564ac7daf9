"""`bench quality`: what a lossy switch costs in words. Candidates beside a base: divergence on prose and code, questions, needles, a gate.

Knows what is compared and when it is too far. The base is the same file with its KV cache in f32, or another file of the same vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ridgeline.backends.base import Program
from ridgeline.bench.accuracy import Divergence, Logits, compare, cut_windows, read_text
from ridgeline.bench.corpus import Corpus
from ridgeline.bench.quality_needle import Found, needles, search
from ridgeline.bench.quality_rtn import Rtn, rounded_tensors
from ridgeline.bench.quality_tasks import Answers, Asker, lookup_task, shipped_tasks
from ridgeline.bench.runner import OneSequence
from ridgeline.engine.loader import load_program, open_model
from ridgeline.engine.words import Words, open_words
from ridgeline.errors import UserError, within
from ridgeline.options import Options

Say = Callable[[str], None]
QUESTION = 256  # tokens of the longest question and its answer
SPARE = 64  # tokens of a question and its answer beside the hay


@dataclass(frozen=True, slots=True)
class Gate:
    """The most that may be lost; None: not looked at. kl, kl_p999: nats, mean and 99.9th percentile; top1: least agreement; ppl: rise of
    perplexity as a share; tasks: right answers lost, as a share of all; needles: the same. Texts count by the worst of them."""

    kl: float | None = 0.05
    kl_p999: float | None = 3.0
    top1: float | None = 0.9
    ppl: float | None = 0.03
    tasks: float | None = 0.05
    needles: float | None = 0.1

    def __post_init__(self) -> None:
        for name in ("kl", "kl_p999", "top1", "ppl", "tasks", "needles"):
            value = getattr(self, name)
            if value is not None:
                option = {"top1": "--min-top1", "kl_p999": "--max-kl-p999"}.get(name, f"--max-{name}")
                within(option, value, 0, 1 if name == "top1" else 1e6)


@dataclass(frozen=True, slots=True)
class QualityOptions:
    """candidates: loads that are judged, the first names the report; base: what they are judged by. positions: per text; window: tokens per
    fresh context; needle_lengths: () for none; text: a file beside the shipped ones; rtn: more candidates, the
    base with its weights rounded."""

    candidates: tuple[Options, ...]
    base: Options
    positions: int = 1500
    window: int = 512
    tasks: bool = True
    needle_lengths: tuple[int, ...] = (512, 1024)
    gate: Gate = field(default_factory=Gate)
    text: Path | None = None
    rtn: tuple[Rtn, ...] = ()

    def __post_init__(self) -> None:
        limits = {"--positions": (self.positions,), "--window": (self.window,), "--needle": self.needle_lengths}
        for name, values in limits.items():
            low = 128 if name == "--needle" else 16
            for value in values:
                within(name, value, low, 1 << 20)


@dataclass(frozen=True, slots=True)
class Check:
    """One measure of one candidate against the gate."""

    candidate: str
    measure: str
    value: float
    limit: float
    passed: bool


@dataclass(frozen=True, slots=True)
class TextResult:
    """One text: the base's perplexity, and every candidate's distance from the base. digest: of the text."""

    text: str
    digest: str
    positions: int
    base_ppl: float
    candidates: tuple[Divergence, ...]

    def rise(self, candidate: Divergence) -> float:
        """Of perplexity over the base's, as a share."""
        return candidate.ppl / self.base_ppl - 1


@dataclass(frozen=True, slots=True)
class Worst:
    """What one candidate lost in the text that lost most, each measure by itself."""

    kl: float
    kl_p999: float
    top1: float
    ppl: float

    @classmethod
    def of(cls, texts: Sequence[TextResult], candidate: int) -> Worst:
        found = [(t, t.candidates[candidate]) for t in texts]
        rises = max(t.rise(d) for t, d in found)
        return cls(max(d.kl_mean for _, d in found), max(d.kl_p999 for _, d in found), min(d.top1 for _, d in found), rises)


@dataclass(frozen=True, slots=True)
class Asked:
    """One model's answers. same: share of items with the base's answer, right or wrong."""

    name: str
    tasks: tuple[Answers, ...]
    needles: tuple[Found, ...]
    same: float | None = None


@dataclass(frozen=True, slots=True)
class QualityReport:
    base: str
    candidates: tuple[str, ...]
    window: int
    texts: tuple[TextResult, ...]
    asked: tuple[Asked, ...]  # the base first
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(c.passed for c in self.checks)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"passed": self.passed}


@dataclass(frozen=True, eq=False)
class _Model:
    """A load under judgement. path: of its file; program: whose packed weights others of the same file share."""

    name: str
    words: Words
    logits: Logits
    path: str
    program: Program


def run(asked: QualityOptions, say: Say = lambda line: None) -> QualityReport:
    """Load base and candidates side by side, ask all of them the same. Raises `UserError` for what cannot be loaded or compared."""
    longest = open_model(replace(asked.base, max_model_len=None, max_num_seqs=1)).plan.max_model_len
    if asked.window > longest:
        say(f"windows of {longest} tokens, which is the model's length, instead of {asked.window}")
        asked = replace(asked, window=longest)
    length = max([asked.window, *(n + SPARE for n in asked.needle_lengths), QUESTION if asked.tasks else 0])
    base = _open(asked.base, length)
    others = [_open(o, length, base) for o in asked.candidates]
    others += [_open(asked.base, length, base, rtn) for rtn in asked.rtn]
    texts = []
    for name, text in shipped_texts(asked.text).items():
        say(f"{name}: {asked.positions} positions through {1 + len(others)} models")
        texts.append(_compare(asked, name, text, base, others))
    answers = [_ask(asked, m, say) for m in (base, *others)] if asked.tasks or asked.needle_lengths else []
    answers = [answers[0], *(_beside(a, answers[0]) for a in answers[1:])] if answers else []
    checks = judge(asked.gate, texts, answers)
    return QualityReport(base.name, tuple(m.name for m in others), asked.window, tuple(texts), tuple(answers), tuple(checks))


def shipped_texts(extra: Path | None = None) -> dict[str, str]:
    """Name -> text."""
    code = (Path(__file__).parent / "data" / "quality_code.txt").read_text("utf8")
    found = {"prose": " ".join(Corpus().sentences), "code": code}
    return found if extra is None else found | {extra.name: read_text(extra)}


def _open(options: Options, length: int, base: _Model | None = None, rtn: Rtn | None = None) -> _Model:
    """Raises `UserError` when the model is too short, or does not share the base's vocabulary."""
    opened = open_model(replace(options, max_model_len=length, max_num_seqs=1))
    words = open_words(opened.checkpoint)
    if base is not None:
        _same_vocabulary(words, base.words)
    name = f"{Path(opened.plan.path).name}, KV {opened.plan.kv_dtype}"
    if rtn is not None:
        spec = opened.spec
        opened = replace(opened, spec=replace(spec, tensors=rounded_tensors(spec.graph, spec.tensors, rtn)))
        name = f"RTN {rtn} of it"
    same = base is not None and rtn is None and base.path == opened.plan.path
    program = load_program(opened, base.program if base is not None and same else None)
    return _Model(name, words, OneSequence(program).logits, opened.plan.path, program)


def _same_vocabulary(words: Words, base: Words) -> None:
    text = "".join(shipped_texts().values())[:4000]
    mine, theirs = words.tokenizer, base.tokenizer
    if mine.size != theirs.size or mine.encode_plain(text) != theirs.encode_plain(text):
        raise UserError(
            f"{words.name} ({mine.size} tokens) and {base.name} ({theirs.size} tokens) do not share a vocabulary", field="--against",
            value=words.name, remedy="compare files of one model",
        )  # fmt: skip


def _compare(asked: QualityOptions, name: str, text: str, base: _Model, others: Sequence[_Model]) -> TextResult:
    tokenizer = base.words.tokenizer
    windows = cut_windows(tokenizer.encode_plain(text), tokenizer.prefix, asked.positions, asked.window)
    if sum(len(w) for w in windows) < 2 + len(tokenizer.prefix):
        raise UserError(f"the text {name} is too short", field="--text", value=len(text), remedy="give one of some hundred words")
    ppl, found = compare(base.logits, {f"{i}": m.logits for i, m in enumerate(others)}, windows)
    named = tuple(replace(d, name=m.name) for d, m in zip(found, others, strict=True))
    return TextResult(name, blake2b(text.encode(), digest_size=8).hexdigest(), sum(len(w) for w in windows), ppl, named)


def _ask(asked: QualityOptions, model: _Model, say: Say) -> Asked:
    say(f"questions to {model.name}")
    tokenizer = model.words.tokenizer
    asker = Asker(model.logits, tokenizer, tokenizer.prefix)
    tasks = tuple(asker.answer(t) for t in (*shipped_tasks(), lookup_task())) if asked.tasks else ()
    found = search(asker, needles(tokenizer, asked.needle_lengths))
    return Asked(model.name, tasks, tuple(found))


def _beside(mine: Asked, base: Asked) -> Asked:
    pairs = [(a, b) for m, n in zip(mine.tasks, base.tasks, strict=True) for a, b in zip(m.given, n.given, strict=True)]
    return replace(mine, same=sum(a == b for a, b in pairs) / len(pairs) if pairs else None)


def judge(gate: Gate, texts: Sequence[TextResult], answers: Sequence[Asked]) -> list[Check]:
    """Every measure that the gate looks at, of every candidate."""
    checks: list[Check] = []

    def check(name: str, measure: str, value: float, limit: float | None, *, least: bool = False) -> None:
        if limit is not None:
            checks.append(Check(name, measure, value, limit, value >= limit if least else value <= limit))

    for i, name in enumerate(d.name for d in texts[0].candidates) if texts else ():
        worst = Worst.of(texts, i)
        check(name, "KL mean", worst.kl, gate.kl)
        check(name, "KL 99.9%", worst.kl_p999, gate.kl_p999)
        check(name, "top-1 agreement", worst.top1, gate.top1, least=True)
        check(name, "perplexity rise", worst.ppl, gate.ppl)
    for mine in answers[1:]:
        for measure, limit, base, now in (
            ("right answers lost", gate.tasks, _right(answers[0]), _right(mine)),
            ("needles lost", gate.needles, _needles(answers[0]), _needles(mine)),
        ):
            if now[1]:
                check(mine.name, measure, (base[0] - now[0]) / now[1], limit)
    return checks


def _right(asked: Asked) -> tuple[int, int]:
    return sum(sum(t.right) for t in asked.tasks), sum(len(t.right) for t in asked.tasks)


def _needles(asked: Asked) -> tuple[int, int]:
    return sum(n.found for n in asked.needles), sum(n.asked for n in asked.needles)
