"""The first rung: Hugging Face transformers answers the same prompts, one after the other. Run by a Python that has torch: this file alone.

`python ladder_hf.py SPEC RESULT`. Imports nothing of this program, which that Python need not have.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any


class Clock:
    """What `generate` streams to: when each token came. The prompt comes first and is no token."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.begun = False

    def put(self, value: Any) -> None:
        if self.begun:
            self.times.append(time.perf_counter())
        self.begun = True

    def end(self) -> None:
        pass


def cpu() -> tuple[float, float, float]:
    """Seconds of all CPUs together: all, stolen by the hypervisor, worked by other processes. Zeros where Linux does not tell (proc(5))."""
    try:
        ticks = [int(w) / os.sysconf("SC_CLK_TCK") for w in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    except (OSError, ValueError):
        return 0.0, 0.0, 0.0
    mine = os.times()
    return sum(ticks), ticks[7], sum(ticks) - ticks[3] - ticks[4] - ticks[7] - mine.user - mine.system


def run(spec: dict[str, Any]) -> dict[str, Any]:
    """The result in the form of `ladder_cell.CellResult`."""
    start = time.perf_counter()
    torch, transformers = (importlib.import_module(name) for name in ("torch", "transformers"))
    torch.set_num_threads(spec["threads"])
    path = Path(spec["path"])
    where = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    folder = str(path.parent if where else path)
    dtype = getattr(torch, spec["dtype"])
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True, **where).eval()
    load_s = time.perf_counter() - start
    print(f"loaded in {load_s:.1f} s", flush=True)

    def generate(ids: list[int], count: int) -> tuple[float, list[float], list[int]]:
        clock, begun = Clock(), time.perf_counter()
        given = torch.tensor([ids])
        with torch.inference_mode():
            out = model.generate(
                given, attention_mask=torch.ones_like(given), max_new_tokens=count, min_new_tokens=count, do_sample=False, num_beams=1,
                streamer=clock, pad_token_id=0,
            )  # fmt: skip
        return begun, clock.times, out[0, len(ids) :].tolist()

    cold = [(t[0] - b) for b, t, _ in (generate(spec["prompts"][0][:64], 2) for _ in range(2))]
    requests, before = [], cpu()
    origin = time.perf_counter()
    for ids, count in zip(spec["prompts"], spec["outputs"], strict=True):
        begun, times, made = generate(ids, count)
        at = begun - origin
        request = {"prompt_tokens": len(ids), "cached_tokens": 0, "wave_s": at, "admitted_s": at}
        requests.append(request | {"token_s": [t - origin for t in times], "ids": made})
        print(f"{len(requests)} of {len(spec['prompts'])} after {time.perf_counter() - origin:.1f} s", flush=True)
    seconds = time.perf_counter() - origin
    passed, stolen, others = (b - a for a, b in zip(before, cpu(), strict=True))
    setup = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
        "dtype": spec["dtype"],
    }
    noise = {"steal": stolen / (passed or 1.0), "others": max(0.0, others) / (passed or 1.0)}
    return noise | {
        "rung": spec["rung"], "seconds": seconds, "requests": requests, "kv": [], "cold_s": cold[0], "warm_s": cold[1], "load_s": load_s,
        "steps": sum(spec["outputs"]), "setup": setup, "counts": {},
    }  # fmt: skip


if __name__ == "__main__":
    found = run(json.loads(Path(sys.argv[1]).read_text("utf8")))
    Path(sys.argv[2] + ".new").write_text(json.dumps(found), "utf8")
    os.replace(sys.argv[2] + ".new", sys.argv[2])
