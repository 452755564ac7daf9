"""PL-01 and PL-03: every term of a total is there, and equals what the engine allocates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.tiny_gguf import tiny_gguf

from ridgeline.cli import main
from ridgeline.engine.self_draft import LeftOut, keep_for
from ridgeline.errors import UserError
from ridgeline.formats.checkpoint import open_checkpoint
from ridgeline.graph.caches import cache_groups
from ridgeline.graph.rewrite import residual_sums, without
from ridgeline.kv.layout import KV_FORMATS, bytes_per_token, group_block_bytes, sequence_bytes
from ridgeline.models import load_spec
from ridgeline.planner.catalog import find_model
from ridgeline.planner.demand import weight_bytes
from ridgeline.planner.formats import WEIGHT_FORMATS, kv_format_named
from ridgeline.planner.hardware import devices, find_device
from ridgeline.planner.parallel import Layout
from ridgeline.planner.pool import kv_pool
from ridgeline.planner.setup import Setup

BF16, KV = WEIGHT_FORMATS["bf16"], kv_format_named("bf16")
H200 = find_device("H200", devices())
GRAPHS = ("Llama-2-7B", "Llama-3.1-8B", "Mistral-7B-v0.1", "Qwen2.5-7B", "Qwen3-8B", "Gemma-2-9B", "Gemma-3-4B", "Gemma-3-27B", "Phi-4",
          "SmolLM2-135M", "Llama-3.2-1B")  # fmt: skip
MODELS = Path(os.environ.get("RIDGELINE_TEST_MODELS", "/work/tmp/models"))


def setup(model: str, **more: Any) -> Setup:
    return Setup(find_model(model), H200, BF16, KV, Layout()).change(**more)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("dtype", sorted(KV_FORMATS))
def test_a_sequence_takes_what_the_allocator_gives_it(name: str, dtype: str) -> None:
    """Row 24: whole blocks of every group, scales included, windows as they saturate; by the function that the engine's pools ask."""
    facts = find_model(name)
    assert facts.graph is not None
    for tokens in (1, 15, 16, 17, 4000, 4096, 9000):
        assert facts.sequence_bytes(tokens, kv_format_named(dtype), 16) == sequence_bytes(facts.graph.caches, dtype, 16, tokens)
    per_token = sum(group_block_bytes(g, 16, dtype) for g in cache_groups(facts.graph.caches)) / 16
    assert facts.kv_bytes_per_token(kv_format_named(dtype)) == per_token


def test_scales_of_quantized_caches_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """PL-01 (d): 32 layers of 8 KV heads of 128: 34 bytes for 32 values in q8_0; 128 and a scale of 4 bytes a head and token in int8."""
    facts = find_model("Llama-3.1-8B")
    assert facts.kv_bytes_per_token(kv_format_named("q8_0")) == 69_632
    assert facts.kv_bytes_per_token(kv_format_named("int8")) == 2 * 32 * 8 * (128 + 4)
    assert main(["plan", "Llama-3.1-8B", "--device", "H200", "--kv-dtype", "int8", "--context", "4K", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kv_bytes_per_token"] == 67_584 and found["kv_bytes_per_sequence"] == 4096 * 67_584


def test_keys_and_values_in_formats_of_their_own() -> None:
    facts = find_model("Gemma-3-4B")
    assert facts.graph is not None
    pair = kv_format_named("INT8/int4")
    assert pair.name == "int8/int4" and kv_format_named("bf16/bf16").name == "bf16"
    for tokens in (1, 17, 5000):
        assert facts.sequence_bytes(tokens, pair, 16) == sequence_bytes(facts.graph.caches, "int8/int4", 16, tokens)
    both = facts.kv_bytes_per_token(kv_format_named("int8")) + facts.kv_bytes_per_token(kv_format_named("int4"))
    assert facts.kv_bytes_per_token(pair) == both / 2  # keys and values are equally wide here
    for name in ("int8/", "/int4", "int8/fp8", "int8/int4/int4"):
        with pytest.raises(UserError, match="not known"):
            kv_format_named(name)


def test_a_draft_lies_beside_the_model() -> None:
    draft = find_model("Llama-3.1-8B")
    plain, drafted = (setup("Llama-3.1-70B", form=WEIGHT_FORMATS["fp8"], draft=d).deployment() for d in (None, draft))
    more = drafted.memory(8, 8192).total - plain.memory(8, 8192).total
    assert more == weight_bytes(draft, BF16).total + 8 * draft.sequence_bytes(8192, KV, 16)
    assert drafted.max_users(8192) < plain.max_users(8192)
    assert kv_pool(drafted, 8192, 8)[1][0] < kv_pool(plain, 8192, 8)[1][0]
    with pytest.raises(UserError, match="needs"):
        kv_pool(setup("Llama-3.1-70B", draft=draft).deployment(), 8192, 64)


def test_the_draft_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["plan", "Llama-3.1-8B", "--device", "H200", "--draft"]
    assert main([*args, "SmolLM2-135M"]) == 0
    out = capsys.readouterr().out
    assert "+ draft" in out and "depends on what is accepted" in out
    assert main([*args, "nosuch"]) == 2
    assert "'nosuch' is not known" in capsys.readouterr().err


def test_a_draft_of_itself_has_keys_and_no_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the search all layers are counted; afterwards those that it guesses with, as the allocator does."""
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    model = str(tiny_gguf(tmp_path / "tiny.gguf"))

    def draft_bytes(name: str, draft: str) -> float:
        assert main(["plan", name, "--device", "H200", "--context", "64", "--batch", "3", "--draft", draft, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["memory"]["draft"]  # type: ignore[no-any-return]

    whole = find_model("Llama-3.1-8B")
    assert draft_bytes("Llama-3.1-8B", "self") == 3 * whole.sequence_bytes(64, KV, 16)
    spec = load_spec(open_checkpoint(Path(model)))
    per_token = bytes_per_token(spec.graph.caches, "bf16")
    assert draft_bytes(model, "self") == 3 * 64 * per_token
    left = residual_sums(spec.graph)[:2]  # the first of two layers
    keep_for(spec, LeftOut(left, 4, 0.5, 0.8))
    assert draft_bytes(model, "self") == 3 * 64 * bytes_per_token(without(spec.graph, left).caches, "bf16") == 3 * 32 * per_token


def test_embeddings_keep_their_bits_and_tied_ones_count_once() -> None:
    """GPTQ-like formats hold the layers in 4 bits, embedding and head in 16."""
    facts, int4 = find_model("Llama-3.1-8B"), WEIGHT_FORMATS["int4"]
    stored = weight_bytes(facts, int4)
    assert stored.embed == 2 * 128256 * 4096 and stored.head == 2 * 128256 * 4096
    assert stored.linear == pytest.approx(facts.parts.linear * int4.bits / 8)
    assert find_model("Gemma-3-4B").parts.head == 0 and weight_bytes(find_model("Gemma-3-4B"), BF16).head == 0


def test_logits_of_a_wide_vocabulary_are_memory() -> None:
    """Float32 logits of 64 sequences over 262,144 ids, and a longer chunk's buffers."""
    one, many = (setup("Gemma-3-4B").deployment().activation_bytes(n) for n in (1, 64))
    assert many - one == 63 * 4 * find_model("Gemma-3-4B").vocab
    short, long = (setup("Gemma-3-4B").deployment(), setup("Gemma-3-4B").deployment())
    assert long.activation_bytes(4096) > 1.9 * short.activation_bytes(2048)


@pytest.mark.parametrize("memory", ["0", "0GB"])
def test_no_memory_is_an_error(memory: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "Llama-3.1-8B", "--device", "H200", "--memory", memory]) == 2
    assert "--memory" in capsys.readouterr().err


def test_gigabytes_are_not_gibibytes(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = []
    for text in ("80GB", "80GiB", "80e9"):
        assert main(["plan", "Llama-3.1-8B", "--device", "H200", "--memory", text, "--json"]) == 0
        sizes.append(json.loads(capsys.readouterr().out)["memory"]["capacity"])
    assert sizes == [80_000_000_000, 85_899_345_920, 80_000_000_000]


SERVE = """
import json, sys
from ridgeline.bench.drive import drive
from ridgeline.bench.workloads import ClosedLoop, Lengths
from ridgeline.engine.loader import load, make_core
from ridgeline.options import Options
model = load(Options(sys.argv[1], max_model_len=640, max_num_seqs=8))
drive(make_core(model), model.text, ClosedLoop(8, 8, Lengths(512, 16)), lambda s: None)
# Not ru_maxrss: that begins with the peak of the process that started this one.
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"peak": 1024 * peak, "weights": model.program.weight_bytes}))
"""


@pytest.mark.real_model
@pytest.mark.long
@pytest.mark.parametrize("name", ["smollm2.gguf", "smollm2-q8_0.gguf", "gemma3-270m.gguf", "1b-Q4_K_M.gguf"])
def test_memory_is_within_a_tenth_of_the_peak(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Eight sequences of 528 tokens in process: resident at most against weights + KV + activations + rest. The rest was fitted to the
    first three, not to the last."""
    path = MODELS / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    assert main(["plan", str(path), "--this-host", "--batch", "8", "--context", "528", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["memory_bytes"]
    done = subprocess.run([sys.executable, "-c", SERVE, str(path)], capture_output=True, text=True, check=True)
    assert planned == pytest.approx(json.loads(done.stdout)["peak"], rel=0.1)
