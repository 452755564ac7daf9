"""`ridgeline pull`: fetch, check, say where it lies."""

from __future__ import annotations

from ridgeline.cli.output import print_json, size
from ridgeline.formats.checkpoint import open_checkpoint
from ridgeline.formats.pull import resolve


def fetch(model: str, *, as_json: bool) -> None:
    """Raises `UserError` for a name that leads nowhere or a file that is not what it claims to be."""
    path = resolve(model)
    checkpoint = open_checkpoint(path)
    if as_json:
        print_json({"model": model, "path": str(path), "architecture": checkpoint.architecture, "file_bytes": checkpoint.file_bytes})
    else:
        print(f"{path}  ({checkpoint.architecture}, {size(checkpoint.file_bytes)})")
