"""The default model through the command line and the Python API: it answers, on its feet, and the same in every company."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from ridgeline import LLM, SamplingParams
from ridgeline.cli import main
from ridgeline.formats.pull import find_cached

pytestmark = pytest.mark.real_model
MODEL = find_cached("smollm2")
needs_model = pytest.mark.skipif(MODEL is None, reason="smollm2 is not in the cache: ridgeline pull smollm2")
STARTUP_BUDGET_S = 1.0


@needs_model
def test_it_knows_paris(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(MODEL), "The capital of France is", "--raw", "--max-tokens", "8", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "Paris" in document["text"] and document["usage"]["prompt_tokens"] == 5
    assert document["timings"]["gen_gb_s"] > 0 and document["timings"]["predicted_gen_tok_s"] > 0


@needs_model
def test_the_whole_process_to_the_first_token_is_within_five_budgets() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    code = "import sys; from ridgeline.cli import main; sys.exit(main())"
    start = time.perf_counter()
    command = [sys.executable, "-c", code, "run", str(MODEL), "Hello", "--max-tokens", "2", "-q"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert child.stdout is not None and child.stdout.read(1)
    took = time.perf_counter() - start
    assert child.wait(timeout=60) == 0 and took < 5 * STARTUP_BUDGET_S


@needs_model
def test_a_batch_says_what_each_says_alone() -> None:
    prompts = ["Once upon a time", "The capital of France is", "def fibonacci(n):", "1, 2, 3, 4," * 30]
    params = [SamplingParams(max_tokens=12, temperature=t, seed=5, n=n) for t, n in ((0.0, 1), (0.8, 3), (1.2, 1), (0.0, 1))]
    llm = LLM(str(MODEL), max_model_len=1024, max_num_batched_tokens=64)
    together = llm.generate(prompts, params)
    assert [[c.token_ids for c in o.outputs] for o in together] == [
        [c.token_ids for c in llm.generate(p, q)[0].outputs] for p, q in zip(prompts, params, strict=True)
    ]
    other = LLM(str(MODEL), max_model_len=512, threads=1, block_size=32, max_num_seqs=2)
    assert [[c.token_ids for c in o.outputs] for o in other.generate(prompts[::-1], params[::-1])] == [
        [c.token_ids for c in o.outputs] for o in together[::-1]
    ]
    assert len({tuple(c.token_ids) for c in together[1].outputs}) == 3


@needs_model
def test_stop_strings_and_chat() -> None:
    llm = LLM(str(MODEL), max_model_len=512)
    whole = llm.chat([{"role": "user", "content": "Count from one to five in words."}], SamplingParams(max_tokens=40, temperature=0))[0]
    stop = whole.outputs[0].text[5:9]
    params = SamplingParams(max_tokens=40, temperature=0, stop=(stop,))
    cut = llm.generate({"prompt_token_ids": whole.prompt_token_ids}, params)[0].outputs[0]
    assert cut.finish_reason == "stop" and cut.stop_reason == stop
    assert cut.text == whole.outputs[0].text[: whole.outputs[0].text.index(stop)]
