"""This machine's ceilings: measured natively in seconds, kept in the cache folder with their date. Knows no model.

What was measured while others had the CPUs is too low to be a ceiling: it does not replace one, and is not kept.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict

from ridgeline.backends.cpu import _native
from ridgeline.backends.cpu.program import ISAS, choose_isa
from ridgeline.bench.machine_load import LIMIT, cpu_time
from ridgeline.bench.record import host_key, machine_name, now
from ridgeline.formats.kept import keep, read_kept
from ridgeline.planner.hardware import Machine
from ridgeline.types import PAIRS_ISA, Isa

# Long enough for the best of many runs on a machine that others use too; both stay far under the 15 s that a probe may take.
FULL_SECONDS = 6.0
SHORT_SECONDS = 1.0
_MAX_BYTES = 1 << 30
FILE = "ceilings.json"


def machine(threads: int, isa: Isa | str = "auto") -> Machine:
    """Ceilings with `threads` threads for the kernels of `isa` ("auto": the best here): from the cache, else a short probe."""
    chosen = _isa(isa)
    return _read(threads, chosen) or probe(threads, chosen, SHORT_SECONDS)


def kept(threads: int, isa: Isa | str = "auto") -> Machine | None:
    """Ceilings that were measured before, None when there are none; measures nothing."""
    return _read(threads, _isa(isa))


def probe(threads: int, isa: Isa | str = "auto", seconds: float = FULL_SECONDS) -> Machine:
    """Measure now, in about `seconds` and at most 15 s, and keep the result. Raises `UserError` for an isa that this CPU lacks.

    Where others had over LIMIT of the CPUs meanwhile: what was kept before, else what was found, which is then not kept."""
    chosen = _isa(isa)
    before = cpu_time()
    read, _, int8, f32, bf16 = _native.probe(ISAS.index(chosen), threads, seconds, _memory_to_use())
    during = cpu_time() - before
    found = Machine(machine_name(), read, int8, f32, threads, chosen, "measured", now(), bf16)
    if during.steal + during.others > LIMIT:
        return _read(threads, chosen) or found
    keep(FILE, host_key(threads, chosen), asdict(found))
    return found


def read_speeds(threads: int, sets_mb: Sequence[int], seconds: float) -> dict[str, float]:
    """1e9 bytes/s that `threads` threads read from working sets of these sizes in MB: the better of two tries of about `seconds`."""
    isa = ISAS.index(choose_isa(None))
    sets = [mb for mb in sets_mb if mb <= _memory_to_use() >> 20]
    tries = [{mb: _native.probe(isa, threads, seconds, mb << 20)[0] for mb in sets} for _ in range(2)]
    return {str(mb): max(t[mb] for t in tries) for mb in sets}


def _isa(isa: Isa | str) -> Isa:
    wanted = [name for name in ISAS if name == isa]
    return choose_isa(wanted[0] if wanted else None)


def _memory_to_use() -> int:
    """A fifth of what is free, so that a probe never pushes a model out of memory."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        free = 1 << 30
    return max(64 << 20, min(_MAX_BYTES, free // 5))


def _read(threads: int, isa: Isa) -> Machine | None:
    """What was kept before there were pairs of bfloat16 still holds, except where a CPU has them."""
    try:
        facts = read_kept(FILE)[host_key(threads, isa)]
        if isa == PAIRS_ISA and not facts["bf16_gflops"]:
            return None
        found = Machine(**facts)
    except (KeyError, TypeError, ValueError):
        return None
    return found if (found.threads, found.isa, found.provenance) == (threads, isa, "measured") else None
