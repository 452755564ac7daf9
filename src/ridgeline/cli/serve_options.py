"""What `ridgeline serve` was asked, from the command line and a file: one checked value per option. Knows no server."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import UserError, one_of
from ridgeline.options import Options, make_options, parse_count, parse_size

_COUNTS = frozenset({"port", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "max_num_queued_reqs", "threads"})
_LISTS = frozenset({"served_model_name", "api_key", "allowed_origin", "allowed_host"})
_FLOATS = frozenset({"itl_target", "drain_timeout"})
_BOOLS = frozenset(
    {
        "enable_prefix_caching", "enable_auto_tool_choice", "trust_request_chat_template", "enable_cache_endpoint", "log_prompts", "mlock",
        "quiet",
    }
)  # fmt: skip
_ALIASES = {"kv_cache_memory": "kv_cache_memory_bytes", "model_tag": "model"}


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """One field per option of the command, under its name. Raises `UserError` with the option, its value and the limit."""

    model: str
    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: tuple[str, ...] = ()
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str = "auto"
    kv_cache_dtype_v: str | None = None
    quality_gate: str = "auto"
    block_size: int = 16
    speculative_config: str | Mapping[str, Any] | None = None
    enable_prefix_caching: bool = True
    scheduling_policy: str = "fcfs"
    itl_target: float | None = None
    max_num_queued_reqs: int = 1024
    threads: int | None = None
    mlock: bool = False
    api_key: tuple[str, ...] = ()
    api_key_file: str | None = None
    allowed_origin: tuple[str, ...] = ()
    allowed_host: tuple[str, ...] = ()
    chat_template: str | None = None
    tool_call_parser: str | None = None
    enable_auto_tool_choice: bool = True
    reasoning_parser: str | None = None
    generation_config: str = "auto"
    trust_request_chat_template: bool = False
    enable_cache_endpoint: bool = False
    log_prompts: bool = False
    log_format: str = "text"
    quiet: bool = False
    drain_timeout: float = 30.0
    otlp_traces_endpoint: str | None = None
    backend: str = "cpu"
    isa: str = "auto"

    def __post_init__(self) -> None:
        if not self.model:
            raise UserError("no MODEL was given", field="MODEL", remedy="name one, for instance: ridgeline serve smollm2")
        if not 0 <= self.port <= 65535:
            raise UserError(f"--port is {self.port}, must be from 0 to 65535", field="--port", value=self.port, limit=(0, 65535))
        one_of("--quality-gate", self.quality_gate, ("auto", "off", "enforce"))
        if self.log_format not in ("text", "json"):
            raise UserError(f"--log-format is {self.log_format!r}, must be text or json", field="--log-format", value=self.log_format)
        if self.generation_config not in ("auto", "openai", "vllm"):
            text = f"--generation-config is {self.generation_config!r}, must be auto or openai"
            raise UserError(text, field="--generation-config", value=self.generation_config)
        if not 0 <= self.drain_timeout <= 86400:
            raise UserError(
                f"--drain-timeout is {self.drain_timeout}, must be from 0 to 86400", field="--drain-timeout", value=self.drain_timeout
            )
        for name in self.served_model_name:
            if not name or len(name) > 256 or not name.isprintable():
                raise UserError(f"--served-model-name {name!r} is not usable", field="--served-model-name", value=name)

    def load_options(self) -> Options:
        """The part that is about the model and the engine."""
        shared = {f.name for f in dataclasses.fields(Options)} - {"model"}
        return make_options(self.model, {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name in shared})

    def template(self) -> str | None:
        """The text of --chat-template: the file's, or the argument itself when it is a template."""
        given = self.chat_template
        if given is None or "{{" in given or "{%" in given:
            return given
        try:
            return Path(given).read_text("utf8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--chat-template {given}: {error}", field="--chat-template", value=given) from None


def serve_options(given: Mapping[str, Any], file: str | None, typed: set[str]) -> ServeOptions:
    """Options of the command line, over those of a file, over the defaults. typed: names that stood on the command line."""
    fields = {f.name for f in dataclasses.fields(ServeOptions)}
    values = {name: value for name, value in given.items() if name in fields}
    for name, value in (_read(Path(file)) if file is not None else {}).items():
        plain = _ALIASES.get(name.replace("-", "_"), name.replace("-", "_"))
        if plain not in fields:
            raise UserError(
                f"{file}: there is no option {name!r}", field="--config", value=name, remedy="`ridgeline serve --help` lists them"
            )
        if plain not in typed or (plain == "model" and not values.get("model")):
            values[plain] = _typed(plain, value, f"{file}: {name}")
    if not values.get("model"):
        values["model"] = ""
    checked: dict[str, Any] = {n: tuple(v or ()) if n in _LISTS else v for n, v in values.items()}
    return ServeOptions(**checked)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--config {path}: {error}", field="--config", value=str(path)) from None
    try:
        document = json.loads(text) if path.suffix == ".json" else _yaml(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"--config {path}: {' '.join(str(error).split())}", field="--config", value=str(path)) from None
    if not isinstance(document, dict):
        raise UserError(f"--config {path} must hold a mapping from option to value", field="--config", value=str(path))
    return {str(k): v for k, v in document.items()}


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _typed(name: str, value: Any, where: str) -> Any:
    if value is None:
        return None
    if name in _COUNTS:
        return parse_count(value, name=where)
    if name == "kv_cache_memory_bytes":
        return parse_size(value, name=where)
    if name in _LISTS:
        return [str(v) for v in value] if isinstance(value, list) else [str(value)]
    if name == "speculative_config" and isinstance(value, Mapping):
        return value
    if name in _FLOATS and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    wanted: type = float if name in _FLOATS else bool if name in _BOOLS else str
    if not isinstance(value, wanted):
        raise UserError(f"{where} is {value!r}, must be of type {wanted.__name__}", field="--config", value=value)
    return value
