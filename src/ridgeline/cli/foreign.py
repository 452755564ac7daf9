"""Options that vLLM users type and that mean nothing, or something else, here: named as such instead of "no such option"."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from ridgeline.errors import UserError

# Harmless here: what they ask for holds anyway, or is about hardware that is not used.
_PASSED_OVER = {
    "gpu-memory-utilization": "there is no GPU; --kv-cache-memory-bytes sets the cache's memory",
    "dtype": "weights are computed in the form of the file",
    "load-format": "the form of the file is recognised",
    "enable-chunked-prefill": "prompts are always read in chunks",
    "enforce-eager": "nothing is compiled at run time",
    "disable-log-requests": "use --quiet",
    "disable-log-stats": "counting costs next to nothing",
    "enable-log-requests": "one line per request is the default",
    "disable-frontend-multiprocessing": "one process serves",
    "swap-space": "preempted sequences are computed anew",
    "cpu-offload-gb": "everything is in the CPU's memory",
    "trust-remote-code": "no model brings code here",
    "async-scheduling": "the loop has no idle device to fill",
    "uvicorn-log-level": "use --log-format and --quiet",
    "disable-uvicorn-access-log": "use --quiet",
    "max-log-len": "prompts are not logged",
    "prefix-caching-hash-algo": "the prefix tree compares tokens, it hashes nothing",
    "enable-prompt-tokens-details": "cached tokens are always reported",
    "show-hidden-metrics-for-version": "no metric is hidden",
    "seed": "give it per request",
    "download-dir": "RIDGELINE_CACHE names the folder",
    "device": "the CPU is used",
    "tokenizer-mode": "there is one",
    "max-logprobs": "20 alternatives per token are the limit",
    "stream-interval": "each token is sent as it comes",
    "num-gpu-blocks-override": "use --kv-cache-memory-bytes",
    "mmap": "weights are packed from the mapped file into memory of their own",
    "numa": "start the server under numactl",
}
# These would change what is served.
_REFUSED = {
    "tensor-parallel-size": "one machine is used",
    "pipeline-parallel-size": "one machine is used",
    "data-parallel-size": "start several",
    "quantization": "the file says how it is quantized",
    "enable-lora": "LoRA adapters are not served",
    "kv-transfer-config": "there is no KV transfer",
    "kv-offloading-size": "there is no second tier",
    "enable-expert-parallel": "one machine is used",
    "tokenizer": "the model's own is used",
    "lora-modules": "LoRA adapters are not served",
    "ssl-keyfile": "put a proxy in front for TLS",
    "ssl-certfile": "put a proxy in front for TLS",
    "runner": "only generation is served",
    "task": "only generation is served",
    "rope-scaling": "the model's own is used",
}
_FLAGS = frozenset(
    {
        "enable-chunked-prefill", "enforce-eager", "disable-log-requests", "disable-log-stats", "disable-frontend-multiprocessing",
        "trust-remote-code", "async-scheduling", "disable-uvicorn-access-log", "enable-prompt-tokens-details", "enable-lora",
        "enable-log-requests", "enable-expert-parallel", "mmap",
    }
)  # fmt: skip


def sort_out(extra: Iterable[str], known: Iterable[str]) -> list[str]:
    """Notes about vLLM's options that are passed over. Raises `UserError` for those that cannot be, and for what nobody knows."""
    notes: list[str] = []
    left = list(extra)
    while left:
        word = left.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        plain = name.replace("_", "-").removeprefix("no-")
        if not word.startswith("--"):
            raise UserError(f"unexpected argument {word!r}", field="argument", value=word, remedy="serve takes one MODEL")
        if plain not in _FLAGS and not equals and left and not left[0].startswith("--") and plain in _PASSED_OVER.keys() | _REFUSED.keys():
            value = left.pop(0)
        if plain in _PASSED_OVER:
            notes.append(f"--{plain} does not apply here: {_PASSED_OVER[plain]}")
        elif plain in _REFUSED and not (plain.endswith("parallel-size") and value == "1"):
            raise UserError(
                f"--{plain} does not apply here: {_REFUSED[plain]}", field=f"--{plain}", value=value or None, remedy="leave it out"
            )
        elif plain not in _REFUSED:
            near = difflib.get_close_matches(name.replace("_", "-"), [k.replace("_", "-") for k in known], 1)
            remedy = f"did you mean --{near[0]}?" if near else "`ridgeline serve --help` lists them"
            raise UserError(f"no such option: --{name}", field=f"--{name}", value=value or None, remedy=remedy)
    return notes
