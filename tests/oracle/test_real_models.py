"""The real small models on 2,000 positions of real text (this repository's licence): the reference backend equals `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

torch = pytest.importorskip("torch", reason="the oracle extra is not installed")
transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed")

from tests.oracle.model_files import model_file

from ridgeline.backends.base import LoadPlan
from ridgeline.backends.reference.program import load
from ridgeline.formats.checkpoint import open_checkpoint
from ridgeline.graph.caches import cache_groups
from ridgeline.graph.step import Span, Step
from ridgeline.models.registry import load_spec

pytestmark = [pytest.mark.oracle, pytest.mark.real_model, pytest.mark.long]
TEXT = Path(__file__).resolve().parents[2] / "LICENSE"
CHUNK = 250


@pytest.mark.parametrize(("alias", "positions"), [("smollm2", 2000), ("gemma3-270m", 1600)])
def test_reference_equals_transformers(alias: str, positions: int) -> None:
    path = model_file(alias)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokens = np.asarray(tokenizer(TEXT.read_text("utf8"))["input_ids"][:positions], np.int32)
    assert len(tokens) == positions
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    worst, spread = compare(path, model, tokens)
    print(f"{alias}: max abs difference {worst:.2e} over {positions} positions, logits up to {spread:.1f}")
    assert worst < 1e-3


def compare(path: Path, model: Any, tokens: npt.NDArray[np.int32]) -> tuple[float, float]:
    """Worst absolute difference of logits over all positions, and the largest logit; logits are made chunk by chunk."""
    spec = load_spec(open_checkpoint(path), len(tokens))
    groups, need = len(cache_groups(spec.graph.caches)), len(tokens) // 16 + 1
    program = load(spec.graph, spec.tensors, LoadPlan((need,) * groups, 16, "f32"))
    tables = tuple((np.arange(need, dtype=np.int32),) for _ in range(groups))
    worst = spread = 0.0
    with torch.no_grad():
        hidden = model.model(torch.from_numpy(tokens.astype(np.int64))[None], use_cache=False).last_hidden_state[0]
        for past in range(0, len(tokens), CHUNK):
            new = min(CHUNK, len(tokens) - past)
            program.forward(Step((Span(0, past, new, new),), tokens[past : past + new], tables))
            want = model.lm_head(hidden[past : past + new]).float().numpy()
            worst = max(worst, float(np.abs(program.logits() - want).max()))
            spread = max(spread, float(np.abs(want).max()))
    return worst, spread
