"""Options -> Plan, and what the machine offers: counts as people type them, limits with numbers, cgroup memory limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.engine.machine import memory_budget
from ridgeline.engine.resolve import Facts, resolve
from ridgeline.errors import UserError
from ridgeline.graph.caches import Cache, Paged
from ridgeline.kv.layout import token_bytes
from ridgeline.options import Options, make_options, parse_count

LAYERS: tuple[Cache, ...] = tuple(Paged(f"l{i}", 2, 64, 64) for i in range(4))
MIXED: tuple[Cache, ...] = (*LAYERS[:2], Paged("w0", 2, 64, 64, window=64), Paged("w1", 2, 64, 64, window=64))
TOKEN_BYTES = 4 * 2 * 2 * 64 * 2  # layers, k and v, heads, dim, bf16


@pytest.mark.parametrize(
    ("text", "value"), [("4096", 4096), ("1k", 1000), ("1K", 1024), ("25.6k", 25600), ("2M", 2**21), (" 7 ", 7), ("-1", -1), (5, 5)]
)
def test_counts(text: str | int, value: int) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize("text", ["", "k", "1.5", "1.0001k", "1e3", "0x10", "1 k", "1kk", "١", "9" * 5000])
def test_what_is_no_count_is_refused_by_name(text: str) -> None:
    with pytest.raises(UserError, match=r"--threads is .*whole number"):
        parse_count(text, name="--threads")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"threads": 0}, "threads"), ({"block_size": 0}, "block_size"), ({"max_model_len": -5}, "max_model_len"),
        ({"kv_cache_dtype": "fp3"}, "kv_cache_dtype"), ({"backend": "cuda"}, "backend"),
        ({"isa": "sse"}, "isa"), ({"max_num_seqs": 0}, "max_num_seqs"), ({"treads": 2}, "treads"),
    ],
)  # fmt: skip
def test_bad_options_name_the_field(given: dict[str, object], field: str) -> None:
    with pytest.raises(UserError) as caught:
        make_options("m", given)
    assert caught.value.field == field and field in str(caught.value)
    assert str(caught.value.value) in str(caught.value)


def facts(memory: int, caches: tuple[Cache, ...] = LAYERS, length: int = 2048) -> Facts:
    return Facts("/m.gguf", length, caches, cpus=3, memory_bytes=memory)


def test_default_length_is_the_models_and_blocks_hold_it() -> None:
    plan = resolve(Options("m", max_num_seqs=2), facts(1 << 40))
    assert (plan.max_model_len, plan.threads, plan.kv_dtype, plan.notes) == (2048, 3, "bf16", ())
    assert plan.blocks == (2 * 2048 // 16,) and plan.kv_bytes == 2 * 2048 * TOKEN_BYTES


def test_window_groups_hold_a_window_and_a_chunk() -> None:
    plan = resolve(Options("m", max_num_seqs=1, max_num_batched_tokens=32), facts(1 << 40, MIXED))
    assert plan.blocks[0] == 128 and (64 + 32) // 16 <= plan.blocks[1] <= (64 + 32) // 16 + 1


def test_too_long_for_memory_is_reduced_with_a_note_or_refused_when_asked() -> None:
    memory = 2 * 1000 * TOKEN_BYTES
    plan = resolve(Options("m"), facts(memory))
    assert 980 <= plan.max_model_len <= 1000 and plan.kv_bytes <= memory // 2
    assert "2048" in plan.notes[0] and str(plan.max_model_len) in plan.notes[0]
    with pytest.raises(UserError) as caught:
        resolve(Options("m", max_model_len=2000), facts(memory))
    assert "2000" in str(caught.value) and caught.value.limit == plan.max_model_len


def test_longer_than_the_model_is_refused() -> None:
    with pytest.raises(UserError, match=r"4096.*2048"):
        resolve(Options("m", max_model_len=4096), facts(1 << 40))


def test_an_asked_dtype_and_thread_count_win() -> None:
    plan = resolve(Options("m", kv_cache_dtype="float16", threads=9), facts(1 << 40))
    assert (plan.kv_dtype, plan.threads) == ("f16", 9) and "max_model_len: 2048" in str(plan)


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({"kv_cache_dtype": "int8_per_token_head"}, "int8"), ({"kv_cache_dtype": "int4_per_token_head"}, "int4"),
        ({"kv_cache_dtype": "int8", "kv_cache_dtype_v": "int4"}, "int8/int4"), ({"kv_cache_dtype": "int8/int4"}, "int8/int4"),
        ({"kv_cache_dtype_v": "int8"}, "bf16/int8"), ({"kv_cache_dtype": "int8", "kv_cache_dtype_v": "auto"}, "int8"),
        ({"kv_cache_dtype": "f16", "kv_cache_dtype_v": "float16"}, "f16"),
    ],
)  # fmt: skip
def test_values_may_have_a_dtype_of_their_own(given: dict[str, str], want: str) -> None:
    plan = resolve(Options("m", max_num_seqs=1, **given), facts(1 << 40))  # type: ignore[arg-type]
    assert plan.kv_dtype == want
    assert plan.kv_bytes == plan.blocks[0] * 16 * sum(token_bytes(c, want) for c in LAYERS if isinstance(c, Paged))


@pytest.mark.parametrize(("given", "field"), [("int8/fp3", "kv_cache_dtype_v"), ("int8/", "kv_cache_dtype_v"), ("/int8", "kv_cache_dtype")])
def test_a_pair_of_dtypes_is_checked_on_both_sides(given: str, field: str) -> None:
    with pytest.raises(UserError, match="int4_per_token_head") as caught:
        Options("m", kv_cache_dtype=given)
    assert caught.value.field == field


def test_a_given_budget_is_filled_and_no_group_starves() -> None:
    asked = 64 * 300 * TOKEN_BYTES
    plan = resolve(Options("m", max_num_seqs=64, kv_cache_memory_bytes=asked), facts(1 << 40, MIXED))
    assert 0.95 * asked < plan.kv_bytes <= asked
    lone = resolve(Options("m", max_num_seqs=1, max_num_batched_tokens=512), facts(1 << 40, MIXED))
    assert all(b >= one for b, one in zip(plan.blocks, lone.blocks, strict=True)), "one full sequence must fit"
    # 64 sequences of 100 tokens hold 7 blocks of either kind: the pools are within reach of each other.
    assert plan.blocks[1] >= 64 * 7 and plan.blocks[0] >= 64 * 7
    doubled = resolve(Options("m", max_num_seqs=4, kv_cache_memory_bytes=10 * 4 * 2048 * TOKEN_BYTES), facts(1 << 40))
    assert doubled.blocks[0] == 10 * 4 * 128


def test_a_budget_or_a_batch_that_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="kv_cache_memory_bytes"):
        resolve(Options("m", kv_cache_memory_bytes=10**12), facts(10**9))
    with pytest.raises(UserError, match="max_model_len 2048"):
        resolve(Options("m", max_model_len=2048, kv_cache_memory_bytes=1000 * TOKEN_BYTES), facts(1 << 40))
    with pytest.raises(UserError, match=r"max_num_batched_tokens is 8.*max_num_seqs 64"):
        resolve(Options("m", max_num_batched_tokens=8), facts(1 << 40))


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2 = "sys/fs/cgroup"


def test_memory_is_what_the_tightest_limit_leaves(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: 100 kB\nMemAvailable: 90 kB\n", "proc/self/cgroup": "0::/a\n",
        f"{V2}/a/memory.max": "61440\n", f"{V2}/a/memory.current": "40960\n", f"{V2}/a/memory.stat": "anon 1\ninactive_file 10240\n",
    }  # fmt: skip
    assert memory_budget(write(tmp_path, files)) == 30720
    write(tmp_path, {f"{V2}/a/memory.max": "max\n"})
    assert memory_budget(tmp_path) == 90 * 1024


def test_memory_limits_of_version_1_and_of_groups_above_count(tmp_path: Path) -> None:
    top = f"{V2}/memory"
    files = {"proc/meminfo": "MemAvailable: 90 kB\n", "proc/self/cgroup": "5:memory:/a/b\n", f"{top}/a/memory.limit_in_bytes": "20480\n"}
    unlimited = {f"{top}/a/b/memory.limit_in_bytes": f"{2**63 - 4096}\n"}
    assert memory_budget(write(tmp_path, files | unlimited)) == 20480


def test_this_machine_answers() -> None:
    assert memory_budget() > 0
