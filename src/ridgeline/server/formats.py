"""What form an answer must have: OpenAI's response_format, vLLM's structured_outputs and guided_*, Anthropic's output_config.

To a `GrammarSpec`; compiles nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ridgeline.errors import UserError
from ridgeline.sampling.grammar import GrammarKind, GrammarSpec

_KINDS: Mapping[str, GrammarKind] = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}


def answer_format(
    response_format: Mapping[str, Any] | None, structured: Mapping[str, Any] | None, guided: Mapping[str, Any]
) -> GrammarSpec | None:
    """The one form that was asked for; None for free text. guided: json, regex, choice, grammar where given.

    Raises `UserError` for several at once, and for a form that is not known.
    """
    found = [spec for spec in (_openai(response_format), _vllm(structured)) if spec is not None]
    found += [GrammarSpec(_KINDS[name], source) for name, source in guided.items() if source is not None]
    if len(found) > 1:
        kinds = ", ".join(spec.kind for spec in found)
        raise UserError(
            f"the answer's form is given {len(found)} times ({kinds}), at most once is allowed", field="response_format", value=kinds
        )
    return found[0] if found else None


def _openai(given: Mapping[str, Any] | None) -> GrammarSpec | None:
    if given is None:
        return None
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return GrammarSpec("json_object")
    if kind == "json_schema":
        inner = given.get("json_schema", given)  # the Responses protocol has the schema beside the type
        schema = inner.get("schema") if isinstance(inner, Mapping) else None
        if not isinstance(schema, Mapping | bool):
            raise UserError("response_format.json_schema.schema must be a JSON schema", field="response_format.json_schema.schema")
        return GrammarSpec("json_schema", dict(schema) if isinstance(schema, Mapping) else schema, lenient=inner.get("strict") is False)
    shown = str(kind)[:60]
    text = f"response_format.type is {shown!r}, must be text, json_object or json_schema"
    raise UserError(text, field="response_format.type", value=shown)


def _vllm(given: Mapping[str, Any] | None) -> GrammarSpec | None:
    if given is None:
        return None
    asked = {k: v for k, v in given.items() if v is not None and v is not False}
    options = {"disable_fallback", "disable_any_whitespace", "disable_additional_properties", "whitespace_pattern", "backend"}
    kinds = [k for k in asked if k not in options]
    if len(kinds) != 1:
        shown = ", ".join(kinds)[:100] or "nothing"
        raise UserError(
            f"structured_outputs gives {shown}, must give one of json, json_object, regex, choice, grammar", field="structured_outputs"
        )
    if kinds[0] == "json_object":
        return GrammarSpec("json_object")
    if kinds[0] not in _KINDS:
        raise UserError(f"structured_outputs.{kinds[0][:40]} is not supported", field="structured_outputs", value=kinds[0][:40])
    return GrammarSpec(_KINDS[kinds[0]], asked[kinds[0]])


def claude_format(config: Mapping[str, Any] | None, beta: Mapping[str, Any] | None) -> GrammarSpec | None:
    """Anthropic's output_config.format, or output_format as its beta had it: a JSON schema or nothing. Raises `UserError`."""
    given, field = (beta, "output_format") if beta is not None else ((config or {}).get("format"), "output_config.format")
    if given is None:
        return None
    schema = given.get("schema") if isinstance(given, Mapping) and given.get("type") == "json_schema" else None
    if not isinstance(schema, Mapping):
        raise UserError(f"{field} must be of type json_schema, with a schema", field=field)
    return GrammarSpec("json_schema", dict(schema))
