"""A llama-batched-bench binary as the peer for many sequences at once. Knows only its command line and its JSON lines."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

from ridgeline.errors import UserError

_TIMEOUT_S = 1800


class BatchedPeer:
    """Mutable only in `last_command`, for the report."""

    def __init__(self, binary: str) -> None:
        self.binary = binary
        self.last_command = ""

    @classmethod
    def find(cls, name: str) -> BatchedPeer:
        """Raises `UserError` for a path that is no file."""
        path = Path(name).expanduser()
        if not path.is_file():
            remedy = "give the path of a llama-batched-bench binary"
            raise UserError(f"--against {name}: there is no such file", field="--against", value=name, remedy=remedy)
        return cls(str(path))

    def decode_tok_s(self, model: str, seqs: int, prompt: int, gen: int, threads: int) -> float:
        """Its `speed_tg` of one run: output tokens of all sequences per second while they decode, flash attention as it chooses."""
        context = seqs * (prompt + gen) + 64
        command = [
            self.binary, "-m", model, "-c", str(context), "-npp", str(prompt), "-ntg", str(gen), "-npl", str(seqs),
            "-t", str(threads), "--output-format", "jsonl",
        ]  # fmt: skip
        self.last_command = shlex.join(command)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
            rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            return float(next(row["speed_tg"] for row in rows if row["pl"] == seqs and row["tg"] == gen))
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(f"--against {self.binary}: {error}", field="--against", value=self.binary) from None
        except (ValueError, KeyError, StopIteration) as error:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            text = f"--against: `{self.last_command}` gave no figure ({type(error).__name__}): {last}"
            raise UserError(text, field="--against", value=self.binary, remedy="run it by hand to see more") from None
