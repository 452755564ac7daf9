"""PF-03: memory that cannot be locked is a line, not an end."""

from __future__ import annotations

import ctypes
import errno
import json
import subprocess
import sys

from ridgeline.engine.pinned import lock_memory

CODE = """
import json, resource
from pathlib import Path
from ridgeline.engine.pinned import lock_memory
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
why = lock_memory()
locked = int(Path("/proc/self/status").read_text().split("VmLck:")[1].split()[0])
print(json.dumps({"why": why, "locked_kib": locked}))
"""


def test_a_limit_of_64_kib_is_told_unless_the_process_may_anyway() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    if found["why"] is None:
        assert found["locked_kib"] > 1000  # root with CAP_IPC_LOCK
    else:
        assert "RLIMIT_MEMLOCK is 65536 bytes" in found["why"] and found["locked_kib"] == 0


def test_why_it_was_refused() -> None:
    asked: list[int] = []

    def refuse(flags: int) -> int:
        asked.append(flags)
        ctypes.set_errno(errno.ENOMEM)
        return -1

    why = lock_memory(refuse)
    assert why is not None and why.startswith("Cannot allocate memory; RLIMIT_MEMLOCK is ") and "\n" not in why
    assert lock_memory(lambda flags: 0) is None
    assert asked == [5]  # what is mapped, when it is touched
