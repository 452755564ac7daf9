"""The closing report of an answer: what was measured, and beside it what the roofline of this machine predicts from the same graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ridgeline.cli.output import note
from ridgeline.engine.choice import Choice
from ridgeline.engine.llm import LLM
from ridgeline.graph.step import Span
from ridgeline.options import Options, lossy_kv
from ridgeline.planner.hardware import Machine
from ridgeline.planner.roofline import predict, predict_prompt


def notes(llm: LLM, options: Options) -> Iterator[str]:
    """What is to be said before the first answer: of the plan, and what a lossy KV cache costs in words, if that is known."""
    yield from llm.model.plan.notes
    if lossy_kv(options):
        from ridgeline.bench.quality_record import remark

        yield remark(options)


def timings(llm: LLM, seq: Choice) -> dict[str, Any]:
    """Seconds, tokens/s and GB/s; null where there was nothing to time. gen_* leave out the first token, which the prompt paid for.

    prompt_tok_s: of tokens that were computed, not of those that the prefix cache gave.
    gen_gb_s: weight and KV bytes that the graph needs per step, as `planner/cost` counts them, over the measured time; guesses that came
    true saved a step each. predicted_gen_tok_s is without guesses.
    predicted_*: the roofline's fastest time on ceilings whose provenance is `predicted_from`.
    """
    times, decoded, computed = seq.times, len(seq.token_ids) - 1, seq.prompt_len - seq.cached_tokens
    prompt_s, gen_s = times.first_token - times.admitted, times.last_token - times.first_token
    found: dict[str, Any] = {
        "load_s": llm.model.load_s, "prompt_s": prompt_s, "gen_s": gen_s, "total_s": llm.model.load_s + times.last_token - times.admitted,
        "prompt_tok_s": _rate(computed, prompt_s), "gen_tok_s": _rate(decoded, gen_s), "gen_gb_s": None,
        "predicted_prompt_tok_s": None, "predicted_gen_tok_s": None, "peak_gb_s": None, "predicted_from": None,
    }  # fmt: skip
    if decoded < 1 or seq.times.first_token == 0 or llm.model.plan.backend != "cpu":
        return found
    book, machine = llm.model.costs(), machine_of(llm)
    # Costs are linear in the position: the step half way, times the number of steps, is the whole.
    step = predict(book, [Span(0, seq.prompt_len + decoded // 2, 1, 1)], machine)
    found["gen_gb_s"] = step.cost.memory_bytes * (decoded - seq.accepted) / gen_s / 1e9 if gen_s > 0 else None
    prompt = predict_prompt(book, computed, machine, past=seq.cached_tokens, chunk=llm.model.plan.chunk)
    found["predicted_prompt_tok_s"] = _rate(computed, prompt.lower_s)
    found["predicted_gen_tok_s"] = 1 / step.lower_s
    found["peak_gb_s"], found["predicted_from"] = machine.read_gb_s, machine.provenance
    return found


def closing_report(llm: LLM, seq: Choice) -> None:
    """Two or three lines on stderr."""
    t = timings(llm, seq)
    note(f"prompt    {seq.prompt_len:>6} tokens  {_shown(t['prompt_tok_s'])} tok/s  (roofline {_shown(t['predicted_prompt_tok_s'])})")
    note(
        f"generated {len(seq.token_ids):>6} tokens  {_shown(t['gen_tok_s'])} tok/s  (roofline {_shown(t['predicted_gen_tok_s'])})"
        f"  reading {_shown(t['gen_gb_s'])} GB/s (ceiling {_shown(t['peak_gb_s'])})"
    )
    if seq.drafted:
        steps = max(1, len(seq.token_ids) - seq.accepted)
        rate = f"{seq.accepted} of {seq.drafted} guesses came true, {len(seq.token_ids) / steps:.2f} tokens a step"
        note(f"speculation ({llm.model.plan.speculative.method if llm.model.plan.speculative else '-'}): {rate}")
    note(f"load {t['load_s']:.2f} s, first token after {t['load_s'] + t['prompt_s']:.2f} s; {provenance(t['predicted_from'])}")


def provenance(kind: str | None) -> str:
    if kind == "measured":
        return "ceilings measured on this machine"
    return f"ceilings {kind}: `ridgeline bench micro` measures them" if kind else "too short to compare with the roofline"


def machine_of(llm: LLM) -> Machine:
    """This machine's ceilings as the probe found them, kept on disk; a short probe when there are none yet."""
    from ridgeline.bench.probe import machine

    return machine(llm.model.plan.threads, llm.model.plan.isa)


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if seconds > 0 and count > 0 else None


def _shown(value: float | None) -> str:
    return "      -" if value is None else f"{value:7.1f}"
