"""Paths inside a model folder: what a file of the model names may not lead out of the folder."""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath

from ridgeline.errors import FileFormatError


def inside(folder: Path, name: str) -> Path:
    """`folder / name`, after checking that it stays in the folder, symlinks followed.

    One exception: the Hugging Face cache keeps `<repo>/snapshots/<revision>/<name>` as links into `<repo>/blobs`.
    Raises `FileFormatError` for an absolute path, `..`, a link that leads outside, or a file that is not there.
    """
    path = folder / name
    parts = (*PurePosixPath(name).parts, *PureWindowsPath(name).parts)
    if not name or "\0" in name or ".." in parts or PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor:
        raise FileFormatError(
            f"{folder}: {name!r} leads out of the model folder",
            field=name,
            value=name,
            limit=str(folder),
            remedy="shards must lie in the folder itself",
        )
    try:
        target, home = path.resolve(strict=True), folder.resolve(strict=True)
    except (OSError, RuntimeError):
        raise FileFormatError(
            f"{path}: is missing", field=str(path), value=name, remedy="download the missing file into the folder"
        ) from None
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else None
    if not target.is_relative_to(home) and not (blobs is not None and target.is_relative_to(blobs)):
        raise FileFormatError(
            f"{path}: is a link that leads out of the model folder, to {target}", field=str(path), value=str(target), limit=str(home),
            remedy="put the file itself into the folder",
        )  # fmt: skip
    return path
