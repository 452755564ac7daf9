"""From a plan to its `Speculator`: which proposer, and what a wider step costs. Knows how they are put together and nothing of either."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ridgeline.backends.base import Program
from ridgeline.engine.speculate import Seconds, Speculator
from ridgeline.errors import InternalError
from ridgeline.formats.tensors import Tensor
from ridgeline.graph.caches import cache_groups
from ridgeline.kv.manager import KvCache
from ridgeline.options import Plan, SpeculativeConfig
from ridgeline.planner.cost import GraphCost
from ridgeline.planner.hardware import assumed
from ridgeline.planner.predictor import StepPredictor
from ridgeline.spec.base import Proposer
from ridgeline.spec.draft import DraftProposer
from ridgeline.spec.ngram import NgramProposer


@dataclass(frozen=True, eq=False)
class LoadedDraft:
    """A packed draft model: its own plan, program and costs; tensors as in its file, for byte counts; agreement: how often it was seen to
    guess right, on shipped text."""

    plan: Plan
    program: Program
    costs: GraphCost
    tensors: Mapping[str, Tensor]
    agreement: float | None = None


def make_speculator(plan: Plan, costs: Callable[[], GraphCost], vocab: int, draft: LoadedDraft | None = None) -> Speculator | None:
    """What the plan asks for; None without a `speculative` part. vocab: ids that may be drawn."""
    config = plan.speculative
    if config is None:
        return None
    predict = step_seconds(costs(), plan) if config.adaptive else None
    guess = step_seconds(draft.costs, draft.plan) if draft is not None and config.adaptive else None
    proposer, rejection = _proposer(config, vocab, draft), config.accept == "rejection"
    agreement = None if draft is None else draft.agreement
    most, off = config.num_speculative_tokens, config.disable_by_batch_size
    return Speculator(proposer, most, predict, off, guess, rejection=rejection, agreement=agreement)


def _proposer(config: SpeculativeConfig, vocab: int, draft: LoadedDraft | None) -> Proposer:
    if config.method == "ngram":
        return NgramProposer(config.prompt_lookup_min, config.prompt_lookup_max)
    if draft is None:
        raise InternalError("a draft model was planned and not loaded")
    plan = draft.plan
    windows = [group.window for group in cache_groups(draft.program.graph.caches)]
    kv = KvCache(windows, plan.blocks, plan.block_size, "radix" if plan.prefix_caching else "off")
    return DraftProposer(draft.program, kv, vocab, plan.max_model_len, plan.chunk, config.accept == "rejection")


def step_seconds(costs: GraphCost, plan: Plan) -> Seconds:
    """Memory and arithmetic of a step one after the other, at assumed ceilings: its shape counts, measured steps set its scale."""
    predictor = StepPredictor(costs, assumed(plan.threads, plan.isa))
    return lambda step: sum(predictor.upper_parts(predictor.numbers(step.spans)))
