"""Row 19: the numeric limit of a matmul's intensity, shown with the model's own sizes."""

from __future__ import annotations

from ridgeline.planner.catalog import find_model
from ridgeline.planner.explain import explain
from ridgeline.planner.formats import WEIGHT_FORMATS, kv_format_named
from ridgeline.planner.hardware import devices, find_device
from ridgeline.planner.parallel import Layout
from ridgeline.planner.setup import Setup


def test_intensity_tends_to_the_batch_until_the_ridge_and_beyond() -> None:
    h100, bf16 = find_device("H100 SXM", devices()), WEIGHT_FORMATS["bf16"]
    base = Setup(find_model("Mistral-7B-v0.3"), h100, bf16, kv_format_named("bf16"), Layout())
    line = next(n for n in explain(base.deployment(), 8, 1024) if n.what == "matmul intensity")
    assert line.numbers == "D = 4096, F = 14336"
    assert line.value == "1.0 at B = 1, 8.0 at B = 8, 62.7 at B = 64, 270.0 at B = 295, 1,792.0 at B = 4096"
