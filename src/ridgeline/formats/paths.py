"""What an untrusted model file says, made safe: its texts in messages, and the paths it names, which may not lead out of its folder."""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath

from ridgeline.errors import FileFormatError

MAX_SHOWN = 120


def shown(value: object) -> str:
    """A value from a file for a message: as Python writes it, so that it stays on one line, and cut when it is long."""
    text = repr(value[: MAX_SHOWN + 1] if isinstance(value, str) else value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."


def inside(folder: Path, name: str) -> Path:
    """`folder / name`, after checking that it stays in the folder, symlinks followed.

    One exception: the Hugging Face cache keeps `<repo>/snapshots/<revision>/<name>` as links into `<repo>/blobs`.
    Raises `FileFormatError` for an absolute path, `..`, a link that leads outside, or a file that is not there.
    """
    path = folder / name
    parts = (*PurePosixPath(name).parts, *PureWindowsPath(name).parts)
    if not name.isprintable() or not name or ".." in parts or PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor:
        raise FileFormatError(
            f"{folder}: {shown(name)} leads out of the model folder",
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
    allowed = (home, *(up.parent / "blobs" for up in home.parents if up.name == "snapshots"))
    if not any(target.is_relative_to(folder) for folder in allowed):
        raise FileFormatError(
            f"{path}: is a link that leads out of the model folder, to {target}", field=str(path), value=str(target), limit=str(home),
            remedy="put the file itself into the folder",
        )  # fmt: skip
    return path
