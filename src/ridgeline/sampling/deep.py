"""Runs a function on a thread with a deep stack. The grammar library recurses along references; an overflow would end the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
STACK_BYTES = 512 << 20  # address space: only what is used becomes memory, and it is given back


def run_deep(work: Callable[[], T]) -> T:
    """The result of `work`, or its exception. Callers that may run at once hold a lock of their own: the stack size is the process's."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    threading.stack_size(STACK_BYTES)
    try:
        thread = threading.Thread(target=run, name="ridgeline-grammar")
        thread.start()
    finally:
        threading.stack_size(0)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
