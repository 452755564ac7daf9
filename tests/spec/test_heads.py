"""What trained heads (Medusa, EAGLE) need of the interface: the target's hidden states that newest tokens were drawn from, by sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tests.models.tiny import VOCAB, tiny
from tests.spec.guessing import Knowing

pytest.importorskip("ridgeline.backends.cpu.native._native", reason="the native backend is not built")

from tests.engine.running import submit

from ridgeline.backends import cpu
from ridgeline.backends.base import LoadPlan
from ridgeline.engine.core import EngineCore
from ridgeline.engine.request import Limits
from ridgeline.engine.speculate import Speculator
from ridgeline.kv.manager import KvCache
from ridgeline.quant.decode import decode_tensor
from ridgeline.scheduler.budget import Budget
from ridgeline.scheduler.state import Faults, SchedulerConfig, SchedulerState
from ridgeline.spec.base import Asked, Proposal
from ridgeline.types import SamplingParams

GRAPH, TENSORS = tiny("llama")
NORM, EMBED = (decode_tensor(TENSORS[name]) for name in ("final_norm", "embed"))
PROMPTS = [np.random.default_rng(i).integers(4, VOCAB, 9 + 7 * i).tolist() for i in range(5)]
PARAMS = SamplingParams(max_tokens=30, temperature=0.0, repetition_penalty=1.0, ignore_eos=True)


def engine() -> EngineCore:
    program = cpu.load(GRAPH, TENSORS, LoadPlan((200,), 16, "f32", 1, taps=("hidden",)))
    make = lambda: SchedulerState(KvCache([None], (200,), 16, "radix"), SchedulerConfig("fcfs", 200))  # noqa: E731
    return EngineCore(program, make, Budget(40, 8, itl_slack=None), Limits(200, VOCAB, frozenset()))


class Head(Knowing):
    """A proposer with a tap: what the target's own head makes of the rows must be the tokens that were drawn last. checked: by how many."""

    core: EngineCore
    checked: dict[int, int]

    def propose(self, asked: Sequence[Asked]) -> list[Proposal]:
        hidden = self.core.program.tap("hidden")
        for one in asked:
            rows = hidden[list(one.rows(one.id))]
            normed = rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + 1e-5) * NORM
            said = (normed @ EMBED.T).argmax(axis=1)
            assert one.tokens[len(one.tokens) - len(said) :].tolist() == said.tolist()
            self.checked[len(said)] = self.checked.get(len(said), 0) + 1
        return super().propose(asked)


@pytest.mark.parametrize("faults", [Faults(), Faults(preempt_every=7)])
def test_a_head_finds_the_hidden_states_that_its_guesses_go_on_from(faults: Faults) -> None:
    plain = engine()
    want = [submit(plain, prompt, PARAMS) for prompt in PROMPTS]
    while plain.busy:
        plain.step()
    answers = {f"h{i}": one.choices[0].token_ids for i, one in enumerate(want)}
    core = engine()
    core.dial(faults)
    prompts = {f"h{i}": prompt for i, prompt in enumerate(PROMPTS)}

    def answer(seq_id: int) -> list[int]:
        name = core._choices[seq_id].request_id
        return [*prompts[name], *answers[name]]

    head = Head(answer, 0.7, VOCAB, 2)
    head.core, head.checked = core, {}
    core.speculator = Speculator(head, 4)
    asked = [submit(core, prompt, PARAMS, f"h{i}") for i, prompt in enumerate(PROMPTS)]
    while core.busy:
        core.step()
    assert core.speculator.fault is None
    assert {one.id: one.choices[0].token_ids for one in asked} == answers
    assert head.checked[1] > 5 and sum(head.checked.get(n, 0) for n in (2, 3, 4, 5)) > 10, "after accepted drafts too"
    assert (head.checked.get(0, 0) > 0) <= (faults.preempt_every > 0), "rows are missing after a preemption at most"
