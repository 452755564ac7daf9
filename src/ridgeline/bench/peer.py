"""llama.cpp's own benchmarks as the peer: llama-bench for one sequence, llama-batched-bench for many. Knows their options and JSON."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ridgeline.errors import UserError

Kind = Literal["prompt", "gen"]
Settings = tuple[str, ...]
SETTINGS: tuple[Settings, ...] = tuple(("-fa", fa, *repack) for fa in ("0", "1") for repack in ((), ("--repack", "0")))
_TIMEOUT_S = 1800


@dataclass(frozen=True, slots=True)
class Peer:
    """A llama-bench and the model file, prompt and generation lengths and threads that it shall measure."""

    binary: str
    model: str
    prompt: int
    gen: int
    threads: int

    def command(self, kind: Kind, settings: Sequence[str], repeat: int = 1) -> list[str]:
        lengths = ("-p", str(self.prompt), "-n", "0") if kind == "prompt" else ("-p", "0", "-n", str(self.gen))
        return [self.binary, "-m", self.model, *lengths, "-t", str(self.threads), "-r", str(repeat), *settings, "-o", "json"]

    def measure(self, kind: Kind, settings: Sequence[str]) -> float:
        """Tokens/s of one repetition. Raises `UserError` when the binary cannot run or answers something else."""
        return tokens_per_s(_answer(self.command(kind, settings)), kind)

    def best_settings(self, kind: Kind) -> tuple[Settings, dict[str, float]]:
        """The fastest of `SETTINGS` in one run each, and every one's tokens/s."""
        best, found = fastest(SETTINGS, lambda settings: self.measure(kind, settings))
        return best, {" ".join(s): v for s, v in found.items()}


def fastest(choices: Iterable[Settings], measure: Callable[[Settings], float]) -> tuple[Settings, dict[Settings, float]]:
    """The settings that measured most, and what each did. Those that raise `UserError` are left out; it is raised when all do."""
    found: dict[Settings, float] = {}
    failed: UserError | None = None
    for settings in choices:
        try:
            found[settings] = measure(settings)
        except UserError as error:
            failed = error
    if not found and failed is not None:
        raise failed
    return max(found, key=lambda s: found[s]), found


def batched_command(binary: str, model: str, seqs: int, prompt: int, gen: int, threads: int) -> list[str]:
    """Of llama-batched-bench: `seqs` sequences at once, flash attention as it chooses."""
    context = seqs * (prompt + gen) + 64
    return [
        binary, "-m", model, "-c", str(context), "-npp", str(prompt), "-ntg", str(gen), "-npl", str(seqs), "-t", str(threads),
        "--output-format", "jsonl",
    ]  # fmt: skip


def batched_tok_s(command: Sequence[str], seqs: int, gen: int) -> float:
    """Its `speed_tg`: output tokens of all sequences per second while they decode. Raises `UserError` when there is none."""
    try:
        rows = [json.loads(line) for line in _answer(command).splitlines() if line.startswith("{")]
        return float(next(row["speed_tg"] for row in rows if row["pl"] == seqs and row["tg"] == gen))
    except (ValueError, KeyError, StopIteration, TypeError) as error:
        text = f"--against: `{shlex.join(command)}` gave no figure ({type(error).__name__})"
        raise UserError(text, field="--against", value=command[0], remedy="run it by hand to see more") from None


def find_binary(name: str, program: str) -> str:
    """program: what it should be, for the message. Raises `UserError` for a path that is no file."""
    path = Path(name).expanduser()
    if not path.is_file():
        remedy = f"give the path of a {program} binary"
        raise UserError(f"--against {name}: there is no such file", field="--against", value=name, remedy=remedy)
    return str(path)


def tokens_per_s(text: str, kind: Kind) -> float:
    """`avg_ts` of the one test of this kind in llama-bench's JSON."""
    try:
        tests: list[dict[str, Any]] = json.loads(text)
        chosen = [t for t in tests if (t["n_prompt"] > 0) == (kind == "prompt") and (t["n_gen"] > 0) == (kind == "gen")]
        return float(chosen[0]["avg_ts"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"--against: its answer is not llama-bench's JSON ({type(error).__name__})", field="--against") from None


def _answer(command: Sequence[str]) -> str:
    """What it printed. Raises `UserError` with its last words when it cannot run, does not end or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"--against {command[0]}: {error}", field="--against", value=command[0]) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        text = f"--against: `{shlex.join(command)}` ended with {done.returncode}: {last}"
        raise UserError(text, field="--against", value=command[0], remedy="run it by hand to see more")
    return done.stdout
