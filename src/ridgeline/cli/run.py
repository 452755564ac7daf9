"""`ridgeline run`: one prompt, its answer on stdout as it comes, the closing report on stderr."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ridgeline.cli.output import note, print_json, writable
from ridgeline.cli.report import closing_report, notes, timings
from ridgeline.cli.start import starting
from ridgeline.engine.choice import Choice
from ridgeline.engine.llm import LLM
from ridgeline.engine.request import EngineRequest, Limits, check, refuse_hopeless
from ridgeline.engine.trace import Trace
from ridgeline.engine.words import Words
from ridgeline.errors import InternalError, UserError
from ridgeline.options import Options
from ridgeline.types import SamplingParams


def answer(
    options: Options, prompt: str | None, params: SamplingParams, *, system: str | None, raw: bool, as_json: bool, quiet: bool,
    trace: str | None = None,
) -> int:  # fmt: skip
    """Returns the exit code: 0, or 1 when the model's numbers broke on the way. Raises `UserError` for what cannot be served."""
    if raw and system is not None:
        raise UserError("--system needs a chat template, --raw uses none", field="--system", value=system, remedy="leave one of them out")
    if trace is not None:
        writable(Path(trace))
    text, ids = read_prompt(prompt, strip=not raw), list[int]()

    def accept(words: Words, limits: Limits) -> None:
        refuse_hopeless(words.tokenizer.least_ids(text), limits)
        ids.extend(words.encode(text) if raw else words.render(messages(system, text))[1])
        check(EngineRequest("0", ids, params), limits)

    with starting():
        llm = LLM.from_options(options, accept)
    for line in notes(llm, options):
        note(f"note: {line}")
    llm.core.trace = Trace() if trace is not None else None
    seq = _generate(llm, ids, params, show=not as_json)
    if trace is not None and llm.core.trace is not None:
        book = llm.model.costs()
        llm.core.trace.write(trace, book)
        for phase in () if quiet else llm.core.trace.phases(book):
            note(f"trace: {phase}")
    if as_json:
        print_json(document(llm, seq))
    elif not quiet:
        note("")
        closing_report(llm, seq)
    if seq.finish == "error":
        raise InternalError(f"generation failed after {len(seq.token_ids)} tokens: {seq.stop_reason}")
    return 0


def _generate(llm: LLM, ids: list[int], params: SamplingParams, *, show: bool) -> Choice:
    last: Choice | None = None
    for last in llm.stream(ids, params):
        if show and last.delta:
            sys.stdout.write(last.delta)
            sys.stdout.flush()
    if last is None:
        raise InternalError("the engine ended without a token")
    if show and not last.text.endswith("\n"):
        sys.stdout.write("\n")
        sys.stdout.flush()
    return last


def read_prompt(prompt: str | None, *, strip: bool) -> str:
    """The argument, or stdin when it is absent or '-'; a pipe's last newline is not part of a chat message."""
    if prompt is not None and prompt != "-":
        return prompt
    if sys.stdin.isatty():
        raise UserError("no prompt was given", field="prompt", remedy="put it in quotes after the model, or pipe it in")
    data = sys.stdin.buffer.read()
    try:
        text = data.decode("utf8")
    except UnicodeDecodeError as error:
        raise UserError(f"stdin is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}", field="stdin", value=error.start) from None
    return text.removesuffix("\n").removesuffix("\r") if strip else text


def messages(system: str | None, text: str) -> list[dict[str, str]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": text}]


def document(llm: LLM, seq: Choice) -> dict[str, Any]:
    """The JSON answer. token_ids: generated only, an ending EOS included; seed: the one that repeats this answer."""
    out = seq.output()
    made = len(out.token_ids)
    usage: dict[str, Any] = {"prompt_tokens": seq.prompt_len, "completion_tokens": made, "total_tokens": seq.prompt_len + made}
    if seq.drafted:
        rejected = seq.drafted - seq.accepted
        usage["completion_tokens_details"] = {"accepted_prediction_tokens": seq.accepted, "rejected_prediction_tokens": rejected}
    return {
        "model": llm.model.plan.model, "text": out.text, "token_ids": out.token_ids, "finish_reason": out.finish_reason,
        "stop_reason": out.stop_reason, "seed": seq.seed, "usage": usage, "timings": timings(llm, seq),
    }  # fmt: skip
