"""A llama-bench binary as the peer: which settings are its best for a model, and one measurement at a time. Knows only its JSON."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ridgeline.errors import UserError

Kind = Literal["prompt", "gen"]
SETTINGS: tuple[tuple[str, ...], ...] = tuple(("-fa", fa, *repack) for fa in ("0", "1") for repack in ((), ("--repack", "0")))
_TIMEOUT_S = 900


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
        command = self.command(kind, settings)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(f"--against {self.binary}: {error}", field="--against", value=self.binary) from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            text = f"--against: `{shlex.join(command)}` ended with {done.returncode}: {last}"
            raise UserError(text, field="--against", value=self.binary, remedy="run it by hand to see more")
        return tokens_per_s(done.stdout, kind)

    def best_settings(self, kind: Kind) -> tuple[tuple[str, ...], dict[str, float]]:
        """The fastest of `SETTINGS` in one run each, and every one's tokens/s. A setting that the binary refuses is left out."""
        found: dict[tuple[str, ...], float] = {}
        failed: UserError | None = None
        for settings in SETTINGS:
            try:
                found[settings] = self.measure(kind, settings)
            except UserError as error:
                failed = error
        if not found and failed is not None:
            raise failed
        return max(found, key=lambda s: found[s]), {" ".join(s): v for s, v in found.items()}


def find_binary(name: str) -> str:
    """Raises `UserError` for a path that is no file."""
    path = Path(name).expanduser()
    if not path.is_file():
        remedy = "give the path of a llama-bench binary"
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
