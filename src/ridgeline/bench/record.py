"""What stands beside every result: the moment, the machine, the command."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

SECRET = "--api-key"


def now() -> str:
    """ISO 8601, UTC, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def machine_name() -> str:
    """CPU model and logical CPUs of this host: ceilings kept under another name are another machine's."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text("utf8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{model}, {os.cpu_count()} CPUs, {platform.node()}"


def clock_text(seconds: float) -> str:
    """1h 02m, 3m 20s, 12 s"""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m {rest:02d}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"


def command_line() -> str:
    """This process as it was typed, for a shell; a key is not told."""
    words = sys.argv[1:]
    told = ("..." if before == SECRET else word.partition("=")[0] + "=..." if word.startswith(f"{SECRET}=") else word
            for before, word in zip(["", *words], words, strict=False))  # fmt: skip
    return shlex.join(["ridgeline", *told])


def host_key(threads: int, isa: str) -> str:
    """What measurements of this host are kept under."""
    return f"{machine_name()} / {isa} / {threads} threads"
