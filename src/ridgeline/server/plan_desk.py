"""What the planner page may ask and the answers: models of the table (and those that the operator named), devices, this host.

Names only: no path of the file system is ever read for a caller. Answers are `planner`'s own; one is worked on at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ridgeline.errors import UserError
from ridgeline.options import parse_count
from ridgeline.planner.calibration import Calibration
from ridgeline.planner.catalog import find_model, models
from ridgeline.planner.explain import explain
from ridgeline.planner.facts import ModelFacts
from ridgeline.planner.formats import KV_NAMES, WEIGHT_FORMATS
from ridgeline.planner.hardware import MATH_TYPES, Device, devices, workshop_devices
from ridgeline.planner.presets import PRESETS
from ridgeline.planner.price import rounded
from ridgeline.planner.question import (
    Question,
    asked_of,
    device_of,
    document_of,
    goal_of,
    options_of,
    preset_of,
    search_document,
    setup_for,
    unchanged,
)
from ridgeline.planner.question_text import MAX_CONTEXT, question_of
from ridgeline.planner.setup import Setup
from ridgeline.planner.sheet import in_force, offers_of, providers_beside
from ridgeline.planner.tables import folded
from ridgeline.server import plan_figures
from ridgeline.server.plan_words import lines, verdict

THIS_HOST = "this host"
CONTEXTS = tuple(1 << n for n in range(8, 21))
COUNTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 256, 512, 1024)
WIDTHS, KEPT = (260.0, 1100.0), 32


@dataclass(frozen=True)
class Host:
    """This machine as a device, with what `calibrate` found of it."""

    device: Device
    calibration: Calibration | None = None


@dataclass
class Desk:
    """Mutable: remembers its last rankings. own: models beside the table, by the name to be asked for. local: on the asker's machine."""

    own: Mapping[str, Callable[[], ModelFacts]] = field(default_factory=dict)
    host: Callable[[], Host | None] = lambda: None
    hardware: Path | None = None
    local: bool = False
    home: bool = False  # whether a chat page lies at /

    def __post_init__(self) -> None:
        self.worker = ThreadPoolExecutor(1, "ridgeline-plan")
        self.waiting = 0
        self._facts: dict[str, ModelFacts] = {}
        self._ranked: dict[tuple[Any, ...], dict[str, Any]] = {}

    @cached_property
    def _host(self) -> Host | None:
        return self.host()

    # --- what may be asked ------------------------------------------------------------------------------------------------------

    def choices(self) -> dict[str, Any]:
        """Names for the fields, presets in words, and whether this host can be chosen."""
        listed = devices(self.hardware)
        host = self._host
        return {
            "models": [*self.own, *models()], "devices": [*((THIS_HOST,) if host else ()), *listed],
            "table": [_row(d) for d in listed.values()], "workshop": [_row(d) for d in workshop_devices().values()],
            "weight_dtypes": list(WEIGHT_FORMATS), "kv_dtypes": KV_NAMES,
            "math": MATH_TYPES, "contexts": CONTEXTS, "counts": COUNTS, "presets": {name: asdict(p) for name, p in PRESETS.items()},
            "first_model": next(iter(self.own), "Llama-3.1-8B"), "first_device": "H100 SXM 80GB", "local": self.local, "home": self.home,
            "calibrated": None if host is None or host.calibration is None else host.calibration.date, "most_context": MAX_CONTEXT,
        }  # fmt: skip

    def _model(self, asked: Question) -> ModelFacts:
        name = next((n for n in self.own if folded(n) == folded(asked.model)), None)
        if name is None:
            return find_model(asked.model, asked.kv_heads)
        if name not in self._facts:
            self._facts[name] = self.own[name]()
        return unchanged(self._facts[name], asked)

    def _setup(self, asked: Question) -> Setup:
        facts = self._model(asked)
        if asked.device is not None and folded(asked.device) == THIS_HOST:
            host = self._host
            if host is None:
                raise UserError(
                    "this host's ceilings are not known", field="--device", value=asked.device, remedy="run `ridgeline calibrate` on it"
                )
            return setup_for(asked, facts, host.device).change(calibration=host.calibration)
        return setup_for(asked, facts, device_of(asked))

    def _question(self, texts: Mapping[str, str]) -> Question:
        return replace(question_of(texts), hardware_file=self.hardware)

    # --- answers ----------------------------------------------------------------------------------------------------------------

    def sheet(self, texts: Mapping[str, str], width: float, providers: str = "", per_day: str = "") -> dict[str, Any]:
        """One plan: document, lines, figures, formulas, the terms in force. Raises `UserError` naming the option."""
        asked = self._question(texts)
        rows, daily = offers_of(providers), parse_count(per_day or "0", name="--requests-per-day")
        chosen = preset_of(asked)
        wanted, setup = asked_of(asked, chosen), self._setup(asked)
        goal, document = wanted.goal, document_of(asked, setup)
        return {
            "verdict": verdict(document), "lines": lines(document), "document": document,
            "figures": plan_figures.figures(setup, document, min(max(width, WIDTHS[0]), WIDTHS[1])),
            "explain": [asdict(line) for line in explain(setup.deployment(), document["batch"], goal.context)],
            "in_force": in_force(setup) | {"context": goal.context, "output": wanted.output, "itl": goal.itl_s, "batch": document["batch"]},
            "preset": None if chosen is None else asdict(chosen),
            "providers": providers_beside(document, goal, wanted.output, rows, daily),
        }  # fmt: skip

    def ranking(self, texts: Mapping[str, str], width: float) -> dict[str, Any]:
        """Every device judged against the same question, cheapest token first; the dropped ones with reason and nearest fix."""
        asked = self._question({k: v for k, v in texts.items() if k not in ("device", "bandwidth", "memory", "math")})
        key = tuple(vars(asked).values())
        if key not in self._ranked:
            chosen = preset_of(asked)
            goal = goal_of(asked, chosen)
            base = self._setup(asked)
            while len(self._ranked) >= KEPT:
                self._ranked.pop(next(iter(self._ranked)))
            self._ranked[key] = search_document(base.facts, goal, options_of(asked, base, goal, chosen))
        found = self._ranked[key]
        return found | {"figure": plan_figures.ranking(found["options"], min(max(width, WIDTHS[0]), WIDTHS[1]))}


def _row(d: Device) -> dict[str, Any]:
    """A device as the page lists it: numbers with their sources and dates; None is unknown."""
    return {
        "name": d.name, "kind": d.kind, "memory_gb": d.memory_gb, "bandwidth_gb_s": d.bandwidth_gb_s, "tflops": dict(d.tflops),
        "ridge": d.ridge(), "link_gb_s": d.link_gb_s, "usd_low": rounded(d.usd_low), "usd_high": rounded(d.usd_high),
        "price_source": f"{d.price_dates}: {d.price_sources}" if d.price_sources else "", "source": f"{d.spec_source} ({d.provenance})",
    }  # fmt: skip

