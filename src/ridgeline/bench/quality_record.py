"""What the gate of `bench quality` said of a lossy switch on a file, kept beside the models; and the gate before such a switch is used.

Lossy is a KV cache in 8 or 4 bits. A record is about one file as it is now: another size or time of change, and it is asked again. It holds
what the limits of that run were broken by; who sets wider limits has wider records.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ridgeline.bench.ladder import run_logged
from ridgeline.bench.quality import QualityOptions, QualityReport, Worst
from ridgeline.bench.record import now
from ridgeline.engine.resolve import kv_dtype_of
from ridgeline.errors import UserError, one_of
from ridgeline.formats.kept import keep, read_kept
from ridgeline.formats.pull import resolve
from ridgeline.options import Options, lossy_kv

Say = Callable[[str], None]
KEPT = "quality.json"
MODES = ("auto", "off", "enforce")
POSITIONS = 500  # of each text, where nobody asked for more
_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """broken: measures over their limit, () for a kept gate. kl (nats), top1, ppl (rise, a share): of the worst text; positions: of all
    texts; questions: whether tasks and needles were asked, too."""

    file: str
    kv: str
    base: str
    date: str
    broken: tuple[str, ...]
    kl: float
    top1: float
    ppl: float
    positions: int
    questions: bool

    def __str__(self) -> str:
        verdict = f"BREAKS the limit of {', '.join(self.broken)}" if self.broken else "keeps every limit"
        asked = "texts, questions, needles" if self.questions else "texts"
        return (
            f"KV {self.kv} {verdict} beside {self.base}: KL {self.kl:.4f} nats, top-1 {self.top1:.1%}, perplexity {self.ppl:+.2%}"
            f" ({asked}, {self.positions} positions, {self.date[:10]})"
        )


def keep_verdicts(asked: QualityOptions, report: QualityReport) -> None:
    """Of every lossy candidate that was judged by its own file with a KV cache that is not."""
    base_kv, base = kv_dtype_of(asked.base), resolve(asked.base.model)
    for i, options in enumerate(asked.candidates):
        if lossy_kv(asked.base) or not lossy_kv(options) or resolve(options.model) != base:
            continue
        kv, name, worst = kv_dtype_of(options), report.candidates[i], Worst.of(report.texts, i)
        broken = tuple(c.measure for c in report.checks if c.candidate == name and not c.passed)
        positions = sum(t.positions for t in report.texts)
        found = Verdict(
            base.name, kv, f"KV {base_kv}", now(), broken, worst.kl, worst.top1, worst.ppl, positions, questions=bool(report.asked)
        )
        keep(KEPT, _key(base, kv), asdict(found))


def told(path: Path, kv_dtype: str) -> Verdict | None:
    """The record of a file, None where there is none or it cannot be read."""
    try:
        found = read_kept(KEPT)[_key(path, kv_dtype)]
        return Verdict(**{**found, "broken": tuple(found["broken"])})
    except (KeyError, TypeError, OSError):
        return None


def gate(options: Options, mode: str, say: Say) -> Verdict | None:
    """Before a model is loaded: what is known of its lossy switch; what is not is found out once, in a process of its own. None where
    nothing is lossy, or nothing can be said. Raises `UserError` under "enforce" for a switch that breaks a limit or was not judged."""
    one_of("--quality-gate", mode, MODES)
    if mode == "off" or not lossy_kv(options):
        return None
    path, kv = resolve(options.model), kv_dtype_of(options)
    found = told(path, kv)
    if found is None:
        say(f"quality   KV {kv} is lossy and was not judged on this file yet: judging it, once (--quality-gate off skips it)")
        why = _judge(path, kv, options)
        found = told(path, kv)
        if found is None:
            say(f"quality   {not_judged(options)}" + (f" ({why})" if why else ""))
    if mode == "enforce" and (found is None or found.broken):
        text = not_judged(options) if found is None else str(found)
        remedy = "choose another --kv-cache-dtype, or serve it all the same with --quality-gate auto"
        raise UserError(text, field="--quality-gate", value=mode, remedy=remedy)
    return found


def not_judged(options: Options) -> str:
    """With the command that judges."""
    kv = kv_dtype_of(options)
    how = f"`ridgeline bench quality {options.model} --kv-cache-dtype {kv}` does, and keeps the record"
    return f"KV {kv} was not judged on this file: {how}"


def remark(options: Options) -> str:
    """A line about a lossy switch for those who wait for one answer: the record or how to get it; nothing is judged."""
    return str(told(resolve(options.model), kv_dtype_of(options)) or not_judged(options))


def _judge(path: Path, kv: str, options: Options) -> str | None:
    """What went wrong, or None. A broken limit is no fault: the record says it."""
    threads = [] if options.threads is None else ["--threads", str(options.threads)]
    command = [
        sys.executable, "-m", "ridgeline", "bench", "quality", str(path), "--no-tasks", "--positions", str(POSITIONS),
        "--kv-cache-dtype", kv, "--base-kv-cache-dtype", "auto", "--isa", options.isa, *threads,
    ]  # fmt: skip
    with TemporaryDirectory() as folder:
        return run_logged(command, Path(folder) / "quality.log", _TIMEOUT_S)


def _key(path: Path, kv: str) -> str:
    """Raises `OSError` for a path that is not there."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    stats = [file.stat() for file in files]
    return f"{path.resolve()}|{sum(s.st_size for s in stats)}|{max([s.st_mtime_ns for s in stats], default=0)}|{kv}"
