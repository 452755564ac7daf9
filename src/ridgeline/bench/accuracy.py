"""`bench accuracy`: how far an engine's next-token distributions lie from the reference backend's, position by position on a real text.

Knows windows, Kullback-Leibler divergence and perplexity; any engine is a function to logits. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.bench.runner import Array, Ids, OneSequence
from ridgeline.bench.stats import interval_of_mean
from ridgeline.engine.loader import OpenModel, load_program, open_model
from ridgeline.engine.words import open_words
from ridgeline.errors import UserError, within
from ridgeline.options import Options
from ridgeline.types import KvDtype

Doubles = npt.NDArray[np.float64]
Logits = Callable[[int, Ids, int], Array]  # as `OneSequence.logits`
CHUNK = 128  # tokens per forward, so that a large vocabulary's logits stay small
ROWS = 16  # rows compared at once, in float64
_RUN = 64  # neighbouring tokens whose losses are alike: they count as one sample of a perplexity's noise


@dataclass(frozen=True, slots=True)
class AccuracyOptions:
    """options: how to load. text: a file (None: this program's own sources). window: tokens per fresh context."""

    options: Options
    text: Path | None = None
    positions: int = 2000
    window: int = 2048
    kv_dtypes: tuple[KvDtype, ...] = ("f32", "f16", "bf16")

    def __post_init__(self) -> None:
        within("--positions", self.positions, 1)
        within("--window", self.window, 2)


@dataclass(frozen=True, slots=True)
class Divergence:
    """One engine against the reference. kl_*: nats of KL(reference || engine) per position; top1: share of positions with the same
    likeliest token; ppl: perplexity of the text's own next tokens; rise_low, rise_high: 95% interval of ppl over the reference's, less 1,
    from the tokens' differences; None for few positions."""

    name: str
    positions: int
    kl_mean: float
    kl_median: float
    kl_p99: float
    kl_p999: float
    kl_max: float
    top1: float
    ppl: float
    rise_low: float | None = None
    rise_high: float | None = None


@dataclass(frozen=True, slots=True)
class AccuracyReport:
    """ppl: the reference's own."""

    model: str
    positions: int
    window: int
    ppl: float
    engines: tuple[Divergence, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class _Seen:
    """Per position: KL, whether the likeliest token is the same, and the negative log-probability of the next token."""

    kl: list[Doubles] = field(default_factory=list)
    same: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    nll: list[Doubles] = field(default_factory=list)


def log_softmax(logits: Array) -> Doubles:
    """[n, vocab] -> float64 [n, vocab]"""
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    return x


def kl_rows(reference: Doubles, other: Doubles) -> Doubles:
    """KL(reference || other) of each row of log-probabilities, nats."""
    kl: Doubles = (np.exp(reference) * (reference - other)).sum(axis=1)
    return kl


def compare(reference: Logits, engines: Mapping[str, Logits], windows: Sequence[Ids]) -> tuple[float, tuple[Divergence, ...]]:
    """The reference's perplexity and every engine's figures over the same windows, walked in step."""
    seen = {name: _Seen() for name in engines}
    own = _Seen()
    for window in windows:
        for past in range(0, len(window), CHUNK):
            tokens = window[past : past + CHUNK]
            follow = window[past + 1 : past + 1 + len(tokens)]
            base = reference(past, tokens, len(tokens))
            for name, engine in engines.items():
                _add(seen[name], base, engine(past, tokens, len(tokens)), follow)
            _add(own, base, base, follow)
    return _perplexity(own), tuple(_divergence(name, s, own) for name, s in seen.items())


def _add(seen: _Seen, reference: Array, other: Array, follow: Ids) -> None:
    """Row i of both predicts follow[i]; the last row of a window predicts nothing that is known."""
    for first in range(0, len(reference), ROWS):
        want, got = reference[first : first + ROWS], other[first : first + ROWS]
        log_want, log_got = log_softmax(want), log_softmax(got)
        seen.kl.append(kl_rows(log_want, log_got))
        seen.same.append(want.argmax(axis=1) == got.argmax(axis=1))
        next_ids = follow[first : first + ROWS]
        seen.nll.append(-log_got[np.arange(len(next_ids)), next_ids])


def _perplexity(seen: _Seen) -> float:
    return float(np.exp(np.concatenate(seen.nll).mean()))


def _divergence(name: str, seen: _Seen, own: _Seen) -> Divergence:
    off = interval_of_mean(np.concatenate(seen.nll) - np.concatenate(own.nll), _RUN)
    low, high = (None, None) if off is None else (float(np.expm1(off[0])), float(np.expm1(off[1])))
    kl = np.concatenate(seen.kl)
    median, p99, p999 = np.percentile(kl, (50, 99, 99.9))
    same = float(np.concatenate(seen.same).mean())
    return Divergence(
        name, len(kl), float(kl.mean()), float(median), float(p99), float(p999), float(kl.max()), same, _perplexity(seen), low, high
    )  # fmt: skip


def interval_text(found: Divergence) -> str:
    """Of the rise of perplexity, in percent; a dash for none."""
    low, high = found.rise_low, found.rise_high
    return "-" if low is None or high is None else f"{100 * low:+.2f}..{100 * high:+.2f}%"


def cut_windows(ids: Sequence[int], prefix: Sequence[int], positions: int, window: int) -> list[Ids]:
    """Contexts of at most `window` ids, each begun with `prefix` (BOS where the model wants one), `positions` in all."""
    body, windows, left, at = window - len(prefix), [], positions, 0
    while left > len(prefix) and at < len(ids):
        part = ids[at : at + min(body, left - len(prefix))]
        windows.append(np.asarray([*prefix, *part], np.int32))
        at += len(part)
        left -= len(windows[-1])
    return windows


def run(asked: AccuracyOptions, say: Callable[[str], None] = lambda line: None) -> AccuracyReport:
    """Load the model once per engine and walk the text. Raises `UserError` for what cannot be loaded or read, or a text too short."""
    options = replace(asked.options, max_model_len=asked.window, max_num_seqs=1)
    reference = open_model(replace(options, backend="reference", kv_cache_dtype="f32"))
    windows = _windows(asked, reference)
    positions = sum(len(w) for w in windows)
    say(f"walking {positions} positions in {len(windows)} windows through the reference and {len(asked.kv_dtypes)} KV dtypes")
    engines = {f"cpu kv {dtype}": _logits(open_model(replace(options, kv_cache_dtype=dtype))) for dtype in asked.kv_dtypes}
    ppl, figures = compare(_logits(reference), engines, windows)
    return AccuracyReport(options.model, positions, asked.window, ppl, figures)


def _logits(model: OpenModel) -> Logits:
    return OneSequence(load_program(model)).logits


def _windows(asked: AccuracyOptions, model: OpenModel) -> list[Ids]:
    tokenizer = open_words(model.checkpoint).tokenizer
    windows = cut_windows(tokenizer.encode_plain(read_text(asked.text)), tokenizer.prefix, asked.positions, asked.window)
    found = sum(len(w) for w in windows)
    if found < asked.positions:
        text = f"the text gives {found} positions, --positions is {asked.positions}"
        raise UserError(text, field="--positions", value=asked.positions, limit=found, remedy="give a longer --text or fewer --positions")
    return windows


def read_text(path: Path | None) -> str:
    """The file's text, or this package's own sources, which are on every machine. Raises `UserError` for a file that is not text."""
    if path is None:
        return "".join(p.read_text("utf8") for p in sorted(Path(__file__).resolve().parents[1].rglob("*.py")))
    try:
        return path.read_text("utf8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--text {path} cannot be read as UTF-8 text: {error}", field="--text", value=str(path)) from error


def render(report: AccuracyReport) -> str:
    """The report for people: one line an engine."""
    r = report
    lines = [f"{r.model}: {r.positions} positions, windows of {r.window}; reference perplexity {r.ppl:.4f}"]
    lines.append(f"  {'engine':<16}{'KL mean':>11}{'median':>11}{'p99':>11}{'max':>11}{'top-1':>9}{'ppl':>10}{'ppl off':>9}{'95%':>18}")
    for e in r.engines:
        kl = "".join(f"{v:>11.2e}" for v in (e.kl_mean, e.kl_median, e.kl_p99, e.kl_max))
        lines.append(f"  {e.name:<16}{kl}{e.top1:>9.2%}{e.ppl:>10.4f}{e.ppl / r.ppl - 1:>+9.2%}{interval_text(e):>18}")
    return "\n".join(lines)
