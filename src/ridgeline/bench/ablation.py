"""`bench engine --scenario ablation`: a prompt and a token with one technique left out, beside all of them, and whether a bit changes.

Programs of one file that share its packed weights. Knows what can be left out here: fused ops, and threads. Knows no terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

import numpy as np

from ridgeline.backends import cpu
from ridgeline.backends.base import LoadPlan
from ridgeline.backends.cpu import CpuProgram
from ridgeline.bench.runner import Array, Ids, OneSequence, random_tokens
from ridgeline.bench.turns import Turns
from ridgeline.engine.loader import OpenModel, load_cpu, open_model
from ridgeline.options import Options

STEPS = 12  # single tokens that are timed behind the prompt


@dataclass(frozen=True, slots=True)
class Ablated:
    """left_out: "" for none. instructions: native calls of a step; prompt_tok_s, gen_tok_s: medians, a token at a time behind the prompt;
    identical: its logits are those of the whole, bit for bit."""

    left_out: str
    instructions: int
    prompt_tok_s: float
    gen_tok_s: float
    identical: bool


@dataclass(frozen=True, slots=True)
class AblationResult:
    """prompt: tokens. The first row has everything."""

    prompt: int
    rows: tuple[Ablated, ...]


class Ablation:
    """Runs the variants in turns; figures go to `turns`."""

    def __init__(self, options: Options, turns: Turns) -> None:
        self._options, self._turns = options, turns

    def run(self, prompt: int = 512) -> AblationResult:
        """Raises `UserError` for a model that cannot be loaded, or is shorter than the prompt."""
        model = open_model(replace(self._options, max_model_len=prompt + 1, max_num_seqs=1))
        whole = load_cpu(model)
        programs = {"": whole, "fused ops": _variant(model, whole, fused=False)}
        if model.plan.threads > 1:
            programs["the other threads"] = _variant(model, whole, threads=1)
        tokens = random_tokens(prompt + 1, OneSequence(whole).vocab)
        logits = {name: _logits(program, tokens, model.plan.chunk) for name, program in programs.items()}
        names = [f"{figure} without {name}" for name in programs for figure in ("prompt", "gen")]
        for _ in self._turns.wanted(*names):
            for name, program in programs.items():
                self._turns.note(partial(_seconds, name, program, tokens, model.plan.chunk))
        rows = [
            Ablated(
                name, program.native.instructions(), prompt / self._turns.median(f"prompt without {name}"),
                1 / self._turns.median(f"gen without {name}"), all(map(np.array_equal, logits[name], logits[""])),
            )
            for name, program in programs.items()
        ]  # fmt: skip
        return AblationResult(prompt, tuple(rows))


def _variant(model: OpenModel, whole: CpuProgram, *, fused: bool = True, threads: int | None = None) -> CpuProgram:
    plan = model.plan
    wanted = LoadPlan(plan.blocks, plan.block_size, plan.kv_dtype, threads or plan.threads)
    return cpu.load(model.spec.graph, model.weights(), wanted, whole.isa, shared=whole.packed, fused=fused)


def _logits(program: CpuProgram, tokens: Ids, chunk: int) -> tuple[Array, Array]:
    """Behind the prompt, and behind one more token."""
    one = OneSequence(program)
    one.prompt_seconds(tokens[:-1], chunk)
    first = program.logits().copy()
    return first, one.logits(len(tokens) - 1, tokens[-1:], 1).copy()


def _seconds(name: str, program: CpuProgram, tokens: Ids, chunk: int) -> dict[str, float]:
    one, past = OneSequence(program), len(tokens) - 1
    prompt = one.prompt_seconds(tokens[:-1], chunk)
    step = one.step(past, tokens[-1:], 1)
    start = perf_counter()
    for _ in range(STEPS):
        program.forward(step)
    return {f"prompt without {name}": prompt, f"gen without {name}": (perf_counter() - start) / STEPS}


def lines(result: AblationResult | None) -> Sequence[str]:
    """The result for people."""
    if result is None:
        return ()
    whole, found = result.rows[0], []
    for r in result.rows:
        name = f"without {r.left_out}" if r.left_out else "all of it"
        change = f" = {r.prompt_tok_s / whole.prompt_tok_s:.2f}x, {r.gen_tok_s / whole.gen_tok_s:.2f}x" if r.left_out else ""
        bits = (", the same logits, bit for bit" if r.identical else ", OTHER LOGITS") if r.left_out else ""
        found.append(
            f"{name}: prompt of {result.prompt} {r.prompt_tok_s:.1f} tok/s, then {r.gen_tok_s:.1f}{change}"
            f" ({r.instructions} native instructions a step){bits}"
        )
    return [f"  {'ablation' if not i else '':<10}{line}" for i, line in enumerate(found)]
