"""Options (what was asked) and Plan (what it came to). Plain data: it knows no model file, no machine and no backend.

`engine/resolve` turns one into the other; after the Plan exists nobody edits configuration.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ridgeline.errors import UserError, one_of, within
from ridgeline.types import KvDtype

Backend = Literal["cpu", "reference"]
SchedulingPolicy = Literal["fcfs", "priority", "lpm"]
IsaChoice = Literal["auto", "portable", "avx2", "avx512", "avx512_bf16"]
SpecMethod = Literal["ngram", "draft_model", "self"]
AcceptRule = Literal["coupled", "rejection"]
KV_DTYPE_NAMES: dict[str, KvDtype | Literal["auto"]] = {
    "auto": "auto", "f32": "f32", "float32": "f32", "bf16": "bf16", "bfloat16": "bf16", "f16": "f16", "float16": "f16",
    "int8": "int8", "int8_per_token_head": "int8", "int4": "int4", "int4_per_token_head": "int4",
}  # fmt: skip
_LOSSY_KV = ("int8", "int4")
_SUFFIX = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def parse_count(text: str | int, *, name: str = "value") -> int:
    """A whole number, as people type it: 4096, 1k (1000), 1K (1024), 25.6k (25600). Raises `UserError` naming the option."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    match = re.fullmatch(r"(-?[0-9]{1,30}(?:\.[0-9]{1,9})?)([kmgKMG]?)", str(text).strip())
    if match:
        whole, _, fraction = match[1].partition(".")
        scaled: int
        scaled, rest = divmod(int(whole + fraction) * _SUFFIX.get(match[2], 1), int(10 ** len(fraction)))
        if rest == 0:
            return scaled
    raise UserError(f"{name} is {text!r}, must be a whole number such as 4096, 1k, 1K or 25.6k", field=name, value=text)


def parse_size(text: str | int, *, name: str = "value") -> int:
    """Bytes, as people type them: 4GiB, 512MB, 1.5G (powers of ten), 2Gi (powers of two), 1048576. Raises `UserError` naming the option."""
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([kmgt]?)(i?)b?", str(text).strip().lower())
    if match is None or isinstance(text, bool) or (match[3] and not match[2]):
        raise UserError(f"{name} is {text!r}, must be a size such as 4GiB, 512MB or 1048576", field=name, value=text)
    whole, _, fraction = match[1].partition(".")
    unit = int((1024 if match[3] else 1000) ** " kmgt".index(match[2] or " "))
    return int(whole + fraction) * unit // int(10 ** len(fraction))


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """How to guess tokens ahead, under vLLM's keys. Raises `UserError` naming the key, its value and the limit.

    method: ngram (the prompt and the answer so far), draft_model (`model`, of the same vocabulary) or self (the model itself with layers
    left out).
    num_speculative_tokens: most guesses of a sequence in a step. prompt_lookup_min, _max: tokens that must agree, and at which no longer
    agreement is looked for. accept: coupled never changes a word; rejection keeps the distribution only (vLLM's rejection_sample_method
    strict and probabilistic). adaptive: fewer guesses, or none, where they would cost time; not with rejection, whose draws depend on it.
    disable_by_batch_size: no guesses when so many sequences run.
    """

    method: SpecMethod
    num_speculative_tokens: int = 4
    model: str | None = None
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 16
    accept: AcceptRule = "coupled"
    adaptive: bool = True
    disable_by_batch_size: int | None = None

    def __post_init__(self) -> None:
        one_of("speculative_config: method", self.method, get_args(SpecMethod))
        one_of("speculative_config: accept", self.accept, get_args(AcceptRule))
        most = self.prompt_lookup_max if isinstance(self.prompt_lookup_max, int) else 64
        for name, low, high in (
            ("num_speculative_tokens", 1, 16), ("prompt_lookup_max", 1, 64), ("prompt_lookup_min", 1, most),
            ("disable_by_batch_size", 1, 65536),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is None and name == "disable_by_batch_size":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                text = f"speculative_config: {name} is {value!r}, must be a whole number from {low} to {high}"
                raise UserError(text, field=name, value=value, limit=(low, high))
        if self.model is not None and (not isinstance(self.model, str) or not self.model):
            raise UserError(f"speculative_config: model is {self.model!r}, must be a name or a path", field="model", value=str(self.model))
        if not isinstance(self.adaptive, bool):
            text = f"speculative_config: adaptive is {self.adaptive!r}, must be true or false"
            raise UserError(text, field="adaptive", value=self.adaptive)
        if (self.method == "draft_model") != (self.model is not None):
            what = "needs the draft's" if self.model is None else "takes no"
            raise UserError(f"speculative_config: method {self.method} {what} model", field="model", value=self.model)
        if self.accept == "rejection":
            object.__setattr__(self, "adaptive", False)


_SPEC_ALIASES = {"draft": "draft_model", "[ngram]": "ngram", "prompt_lookup": "ngram"}
_SPEC_RULES = {"strict": "coupled", "probabilistic": "rejection", "coupled": "coupled", "rejection": "rejection"}
_SPEC_IDLE = {"draft_tensor_parallel_size": (1, None), "parallel_drafting": (False, None)}  # keys of vLLM with the only value that applies
# Methods of others, and what they would need.
_SPEC_REFUSED = {
    **dict.fromkeys(("eagle", "eagle3", "medusa", "mtp", "deepseek_mtp", "mlp_speculator", "dflash"), "trained heads"),
    "suffix": "a store of earlier answers",
}  # fmt: skip


def speculative_config(given: str | Mapping[str, Any] | SpeculativeConfig | None) -> SpeculativeConfig | None:
    """vLLM's JSON, or a mapping of its keys. Raises `UserError` for what is not JSON, not a key, or does not apply here."""
    if given is None or isinstance(given, SpeculativeConfig):
        return given
    example = """for instance '{"method": "ngram", "num_speculative_tokens": 4}'"""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            text = f"speculative_config is not JSON: {error}"
            raise UserError(text, field="speculative_config", value=str(given)[:80], remedy=example) from None
    if not isinstance(given, Mapping):
        raise UserError("speculative_config must be a JSON object", field="speculative_config", value=str(given)[:80], remedy=example)
    values = {str(k): v for k, v in given.items()}
    for name, allowed in _SPEC_IDLE.items():
        if values.pop(name, None) not in allowed:
            text = f"speculative_config: {name} can only be {allowed[0]} on a CPU"
            raise UserError(text, field=name, value=given[name], limit=allowed[0])
    method = values.setdefault("method", "draft_model" if values.get("model") not in (None, "ngram", "[ngram]") else "ngram")
    if isinstance(method, str) and method in _SPEC_REFUSED:
        text = f"speculative_config: method {method} is not supported: it needs {_SPEC_REFUSED[method]}"
        raise UserError(text, field="method", value=method, limit=get_args(SpecMethod), remedy="use ngram, draft_model or self")
    values["method"] = _SPEC_ALIASES.get(str(method), str(method))
    if values["method"] == "ngram" and values.get("model") in ("ngram", "[ngram]"):
        del values["model"]
    rule = values.pop("rejection_sample_method", None)
    if rule is not None:
        one_of("speculative_config: rejection_sample_method", rule, tuple(_SPEC_RULES))
        values.setdefault("accept", _SPEC_RULES[rule])
    known = {f.name for f in dataclasses.fields(SpeculativeConfig)}
    for name in values:
        if name not in known:
            remedy = f"keys are {', '.join(sorted(known))}"
            raise UserError(f"speculative_config: unknown key {name!r}", field=name, value=str(values[name])[:80], remedy=remedy)
    if "prompt_lookup_max" in values and "prompt_lookup_min" not in values and isinstance(values["prompt_lookup_max"], int):
        values["prompt_lookup_min"] = min(2, values["prompt_lookup_max"])
    return SpeculativeConfig(**values)


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked of a load; None and "auto" mean: decide for me. Raises `UserError` with the option, its value and the limit.

    max_num_batched_tokens: tokens of one step; kv_cache_memory_bytes: all KV blocks together; itl_target: seconds between tokens that
    running answers keep while prompts are read; max_num_queued_reqs: requests beyond max_num_seqs before new ones are refused.
    speculative_config: a `SpeculativeConfig`, a mapping of its keys, or JSON.
    """

    model: str
    max_model_len: int | None = None
    threads: int | None = None
    kv_cache_dtype: str = "auto"
    kv_cache_dtype_v: str | None = None
    block_size: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    backend: Backend = "cpu"
    isa: IsaChoice = "auto"
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool = True
    scheduling_policy: SchedulingPolicy = "fcfs"
    max_num_queued_reqs: int = 4096
    itl_target: float | None = None
    speculative_config: str | Mapping[str, Any] | SpeculativeConfig | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "speculative_config", speculative_config(self.speculative_config))
        for name, low, high in (
            ("max_model_len", 1, 2**31 - 1), ("threads", 1, 1024), ("block_size", 1, 4096),
            ("max_num_seqs", 1, 65536), ("max_num_batched_tokens", 1, 2**20), ("kv_cache_memory_bytes", 1, 2**50),
            ("max_num_queued_reqs", 1, 2**31 - 1),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is None and name in ("max_model_len", "threads", "kv_cache_memory_bytes"):
                continue
            number = parse_count(value, name=name)
            within(name, number, low, high)
            object.__setattr__(self, name, number)
        if self.itl_target is not None and not 0 < self.itl_target < 3600:
            message = f"itl_target is {self.itl_target} s, must be above 0"
            raise UserError(message, field="itl_target", value=self.itl_target, limit=(0, 3600))
        one_of("scheduling_policy", self.scheduling_policy, get_args(SchedulingPolicy))
        one_of("backend", self.backend, get_args(Backend))
        one_of("isa", self.isa, get_args(IsaChoice))
        keys, slash, values = self.kv_cache_dtype.partition("/")
        if slash and self.kv_cache_dtype_v is None:
            object.__setattr__(self, "kv_cache_dtype", keys)
            object.__setattr__(self, "kv_cache_dtype_v", values)
        one_of("kv_cache_dtype", self.kv_cache_dtype, KV_DTYPE_NAMES)
        if self.kv_cache_dtype_v is not None:
            one_of("kv_cache_dtype_v", self.kv_cache_dtype_v, KV_DTYPE_NAMES)


def lossy_kv(options: Options) -> bool:
    """Whether keys or values are kept in so few bits that words change by it: a gate judges that (`bench quality`)."""
    given = (options.kv_cache_dtype, options.kv_cache_dtype_v or "auto")
    return any(KV_DTYPE_NAMES[name] in _LOSSY_KV for name in given)


def make_options(model: str, given: dict[str, Any]) -> Options:
    """`Options` from keyword arguments; an unknown name is refused with the list of those that exist."""
    known = {f.name for f in dataclasses.fields(Options)}
    for name in given:
        if name not in known:
            remedy = f"options are {', '.join(sorted(known - {'model'}))}"
            raise UserError(f"unknown option {name!r}", field=name, value=name, remedy=remedy)
    return Options(model=model, **given)


@dataclass(frozen=True, slots=True)
class Plan:
    """A resolved load. `blocks[g]` KV blocks of `block_size` tokens for cache group g; `chunk` tokens of a step at most;
    `notes` are decisions worth a line."""

    model: str
    path: str
    backend: Backend
    isa: IsaChoice
    max_model_len: int
    threads: int
    kv_dtype: str
    block_size: int
    blocks: tuple[int, ...]
    kv_bytes: int
    max_num_seqs: int
    chunk: int
    notes: tuple[str, ...] = ()
    prefix_caching: bool = True
    scheduling_policy: SchedulingPolicy = "fcfs"
    max_num_queued_reqs: int = 4096
    itl_target: float | None = None
    speculative: SpeculativeConfig | None = None

    def __str__(self) -> str:
        """One line per field, for people."""
        return "\n".join(f"{f.name:>14}: {getattr(self, f.name)}" for f in dataclasses.fields(self))
