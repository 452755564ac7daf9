"""From a plan to its `Speculator`: which proposer, and what a wider step costs. Knows how they are put together and nothing of either."""

from __future__ import annotations

from collections.abc import Callable

from ridgeline.engine.speculate import Speculator
from ridgeline.errors import UnsupportedError
from ridgeline.graph.step import Step
from ridgeline.options import Plan, SpeculativeConfig
from ridgeline.planner.cost import GraphCost
from ridgeline.planner.hardware import assumed
from ridgeline.planner.predictor import StepPredictor
from ridgeline.spec.base import Proposer
from ridgeline.spec.ngram import NgramProposer


def make_speculator(plan: Plan, costs: Callable[[], GraphCost]) -> Speculator | None:
    """What the plan asks for; None without a `speculative` part."""
    config = plan.speculative
    if config is None:
        return None
    predict = step_seconds(costs(), plan) if config.adaptive else None
    return Speculator(_proposer(config), config.num_speculative_tokens, predict, config.disable_by_batch_size)


def _proposer(config: SpeculativeConfig) -> Proposer:
    if config.method == "ngram":
        return NgramProposer(config.prompt_lookup_min, config.prompt_lookup_max)
    raise UnsupportedError(f"speculative_config: method {config.method} is not available", field="method", value=config.method, limit="ngram")


def step_seconds(costs: GraphCost, plan: Plan) -> Callable[[Step], float]:
    """Memory and arithmetic of a step one after the other, at assumed ceilings: its shape counts, measured steps set its scale."""
    predictor = StepPredictor(costs, assumed(plan.threads, plan.isa))
    return lambda step: sum(predictor.upper_parts(step.spans))
