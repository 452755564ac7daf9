"""Which kernel serves which op, as rows chosen once at load and shown by `inspect --kernels`. Knows no kernel's inside."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """One row: `subject` is a weight's name or an op kind, `encoding` the stored format ("-" for ops without weights),
    `kernel` the native kernel's name, `why` the reason in a few words."""

    subject: str
    encoding: str
    kernel: str
    why: str


def why_kernel(isa: str, forced: bool, kernel: str) -> str:
    """The reason for a row: `isa` is what the program was loaded for, `forced` whether somebody asked for it."""
    if isa not in kernel:
        return f"no {isa} kernel for this format, so the best one below it"
    return "asked for" if forced else f"{isa} is the best that this CPU supports"
