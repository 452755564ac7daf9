"""How downloads report, and where downloaded models lie. Knows no source of models."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# Called with what is being fetched, the bytes that are there and the bytes in all.
Progress = Callable[[str, int, int], None]


def cache_dir() -> Path:
    """The folder for downloaded models: $RIDGELINE_CACHE, or ~/.cache/ridgeline. It need not exist yet."""
    named = os.environ.get("RIDGELINE_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "ridgeline"


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A progress bar on stderr; on something else than a terminal only the finished line is printed."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with Bar(*columns, console=console) as bar:

        def report(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bar.add_task(label, total=total)
            bar.update(tasks[label], completed=done, total=total)

        yield report
