"""PF-01: threads from affinity, cgroup quota along the whole path, physical cores, and what the user set."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.cli.tiny_gguf import tiny_gguf

import ridgeline
from ridgeline.backends.cpu.threads import default_threads


def machine(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2(quota: str, group: str = "/job") -> dict[str, str]:
    return {"proc/self/cgroup": f"0::{group}\n", f"sys/fs/cgroup{group}/cpu.max": quota + "\n"}


@pytest.mark.parametrize(
    ("quota", "cpus", "threads"),
    [
        ("400000 100000", 8, 4),
        ("max 100000", 8, 8),
        ("50000 100000", 8, 1),
        ("765000 100000", 8, 7),
        ("400000 100000", 2, 2),
        ("100000 100000", 1, 1),
    ],
)
def test_quota_and_affinity(tmp_path: Path, quota: str, cpus: int, threads: int) -> None:
    assert default_threads(1, machine(tmp_path, v2(quota)), range(cpus), {}) == threads


def test_the_tightest_group_on_the_path_wins(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
        "sys/fs/cgroup/a/cpu.max": "300000 100000\n",
        "sys/fs/cgroup/cpu.max": "600000 100000\n",
    }
    assert default_threads(1, machine(tmp_path, files), range(16), {}) == 3


def test_a_container_that_sees_the_hosts_path(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/docker/123\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}
    assert default_threads(1, machine(tmp_path, files), range(16), {}) == 2


@pytest.mark.parametrize("folder", ["cpu,cpuacct", "cpu"])
def test_version_1(tmp_path: Path, folder: str) -> None:
    top = f"sys/fs/cgroup/{folder}/job"
    limits = {f"{top}/cpu.cfs_quota_us": "250000\n", f"{top}/cpu.cfs_period_us": "100000\n"}
    files = {"proc/self/cgroup": "4:cpu,cpuacct:/job\n3:memory:/job\n", **limits}
    assert default_threads(1, machine(tmp_path, files), range(8), {}) == 2


def test_version_1_without_a_limit(tmp_path: Path) -> None:
    top = "sys/fs/cgroup/cpu/job"
    files = {"proc/self/cgroup": "4:cpu:/job\n", f"{top}/cpu.cfs_quota_us": "-1\n", f"{top}/cpu.cfs_period_us": "100000\n"}
    assert default_threads(1, machine(tmp_path, files), range(8), {}) == 8


def test_two_hardware_threads_of_a_core_count_once(tmp_path: Path) -> None:
    files = {f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list": f"{i % 4},{i % 4 + 4}\n" for i in range(8)}
    assert default_threads(1, machine(tmp_path, files), range(8), {}) == 4
    assert default_threads(1, tmp_path, [0, 4], {}) == 1


@pytest.mark.parametrize(("value", "threads"), [("3", 3), ("64", 8), ("0", 8), ("many", 8), ("", 8), ("2,1", 2)])
def test_omp_num_threads_lowers_only(tmp_path: Path, value: str, threads: int) -> None:
    assert default_threads(1, tmp_path, range(8), {"OMP_NUM_THREADS": value}) == threads


@pytest.mark.parametrize(("workers", "threads"), [(1, 4), (2, 2), (3, 1), (4, 1), (9, 1)])
def test_workers_share_the_budget(tmp_path: Path, workers: int, threads: int) -> None:
    assert default_threads(workers, machine(tmp_path, v2("400000 100000")), range(8), {}) == threads


@pytest.mark.parametrize("text", ["", "garbage", "100000", "-5 100000", "100000 0", "1 2 3"])
def test_unreadable_files_set_no_limit(tmp_path: Path, text: str) -> None:
    assert default_threads(1, machine(tmp_path, v2(text)), range(8), {}) == 8


def test_this_machine() -> None:
    assert default_threads() >= 1


# Other libraries' pools: numpy's BLAS would start a thread for each core of the host.
POOLS = """
import ctypes, json, os, sys
from ridgeline.cli import main
code = main(["run", sys.argv[1], "hi", "--max-tokens", "2", "--threads", "1", "-q"])
paths = {line.split()[-1] for line in open("/proc/self/maps") if "openblas" in line}
calls = [getattr(ctypes.CDLL(path), name, None) for path in paths
         for name in ("scipy_openblas_get_num_threads64_", "openblas_get_num_threads64_", "openblas_get_num_threads")]
print(json.dumps({"code": code, "blas": [call() for call in calls if call is not None], "threads": len(os.listdir("/proc/self/task"))}))
"""


@pytest.mark.parametrize(("given", "blas"), [(None, 1), ("2", 2)])
def test_blas_has_no_threads_beside_ours_unless_the_user_says_so(tmp_path: Path, given: str | None, blas: int) -> None:
    environment = {n: v for n, v in os.environ.items() if n != "OPENBLAS_NUM_THREADS"}
    environment |= {} if given is None else {"OPENBLAS_NUM_THREADS": given}
    model = tiny_gguf(tmp_path / "tiny.gguf")
    done = subprocess.run([sys.executable, "-c", POOLS, str(model)], env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["code"] == 0
    if not found["blas"]:
        pytest.skip("this numpy has no OpenBLAS")
    assert found["blas"] == [min(blas, len(os.sched_getaffinity(0)))]
    assert found["threads"] <= 1 + found["blas"][0]  # one engine thread is the main one


# What runs in every step. The planner's products there are of some hundred numbers, which BLAS keeps on the calling thread.
STEP_ROOMS = ("engine", "scheduler", "kv", "sampling", "backends/cpu", "text", "server")
AT_START = ("engine/self_draft.py", "backends/cpu/selftest.py")
PRODUCTS = {"dot", "matmul", "einsum", "tensordot", "inner", "vdot", "linalg"}


def test_steps_never_call_blas() -> None:
    """The native kernels do all arithmetic of a model: workers x BLAS threads never multiply."""
    root = Path(ridgeline.__file__).parent
    for path in (p for room in STEP_ROOMS for p in sorted((root / room).rglob("*.py")) if str(p.relative_to(root)) not in AT_START):
        for node in ast.walk(ast.parse(path.read_text())):
            product = isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult)
            assert not product and not (isinstance(node, ast.Attribute) and node.attr in PRODUCTS), f"{path}:{getattr(node, 'lineno', 0)}"
