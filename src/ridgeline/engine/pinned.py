"""Keeps what a process has in memory out of swap. A system that refuses is told of in a line, never an error. Knows no model.

Source: mlock2(2): MCL_ONFAULT locks pages as they are first touched, so that a KV pool costs no memory before it is used.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

_CURRENT, _ON_FAULT = 1, 4  # mappings to come are left alone: a limit that they reach would be an allocation that fails


def lock_memory(lock: Callable[[int], int] | None = None) -> str | None:
    """Lock all that is mapped now. None when it is done, else why not, with the limit. `lock` is given by tests only."""
    call = _mlockall() if lock is None else lock
    if call is None:
        return "this system has no mlockall"
    ctypes.set_errno(0)
    if call(_CURRENT | _ON_FAULT) == 0:
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    shown = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit} bytes"
    return f"{os.strerror(ctypes.get_errno())}; RLIMIT_MEMLOCK is {shown}, raise it with `ulimit -l` or LimitMEMLOCK="


def _mlockall() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] | None = getattr(ctypes.CDLL(None, use_errno=True), "mlockall", None)
    except (OSError, TypeError):  # TypeError: Windows wants a name
        return None
    return found
