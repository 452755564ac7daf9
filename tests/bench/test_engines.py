"""The command lines of engines, as far as a real one was found to need them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ridgeline.bench.engines_process as engines_process
from ridgeline.bench.engines import ENGINES, Wish, command
from ridgeline.bench.engines_process import Process

WISH = Wish("m", "/m", 1234, 2048, 32, 1)
VARIABLES = ("VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", "LD_PRELOAD")


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_vllm_on_cpus_is_given_its_threads_and_a_bounded_cache(tmp_path: Path) -> None:
    line = command(ENGINES["vllm"], [str(tmp_path / "bin/vllm")], WISH)
    at = line.index(str(tmp_path / "bin/vllm"))
    first = min(os.sched_getaffinity(0))
    assert line[0] == "env" and "VLLM_CPU_KVCACHE_SPACE=3" in line[:at] and f"VLLM_CPU_OMP_THREADS_BIND={first}" in line[:at]
    assert line[line.index("--dtype") + 1] == "bfloat16" and "--enable-prompt-tokens-details" in line[at:]


def test_vllm_preloads_the_openmp_of_its_own_environment(tmp_path: Path) -> None:
    def preloaded() -> list[str]:
        line = command(ENGINES["vllm"], [str(tmp_path / "bin/vllm")], WISH)
        return [lib for word in line if word.startswith("LD_PRELOAD=") for lib in word.removeprefix("LD_PRELOAD=").split(":")]

    assert not any("iomp" in lib for lib in preloaded())
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libiomp5.so").write_text("")
    assert preloaded()[0] == str(tmp_path / "lib/libiomp5.so")


def test_what_the_user_has_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    assert "VLLM_CPU_KVCACHE_SPACE=7" in command(ENGINES["vllm"], [str(tmp_path / "bin/vllm")], WISH)


def test_the_printed_command_sets_the_variables_of_the_program(tmp_path: Path) -> None:
    program = tmp_path / "vllm"
    program.write_text('#!/bin/sh\necho "$VLLM_CPU_KVCACHE_SPACE $1"\n')
    program.chmod(0o755)
    line = command(ENGINES["vllm"], [str(program)], WISH)
    assert subprocess.run(line, capture_output=True, text=True, check=True).stdout == "3 serve\n"


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "vllm"])
def test_others_are_started_directly(name: str) -> None:
    assert command(ENGINES[name], ["prog"], WISH)[0] == "prog"


@pytest.mark.parametrize("first_ends_by_itself", [False, True])
def test_what_outlives_the_first_process_is_ended_too(first_ends_by_itself: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's frontend ends seconds before its workers: the next engine must not be measured beside those."""
    monkeypatch.setattr(engines_process, "_GRACE_S", 0.3)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    first = f"import subprocess, sys, time; print(subprocess.Popen([sys.executable, '-c', {deaf!r}]).pid, flush=True)"
    log = tmp_path / "log"
    process = Process([sys.executable, "-c", first if first_ends_by_itself else f"{first}; time.sleep(60)"], log)
    until = time.monotonic() + 20
    while (said := log.read_text().split()) == [] or "deaf" not in said or (first_ends_by_itself and process._child.poll() is None):
        assert time.monotonic() < until, said
        time.sleep(0.01)
    process.end()
    worker = next(int(word) for word in said if word.isdigit())
    state = Path(f"/proc/{worker}/stat")
    assert not state.exists() or state.read_text().split(") ")[1][0] == "Z"
