"""What a bench command hands to `ridgeline bench report`: facts for figures and tables, each number with its label. Draws nothing.

A JSON file is accepted when it has a key "report" that holds one `ReportDocument` (or a list of them), or is one itself; what else
the file holds is its command's own affair. Write `to_json(document)` under that key; `read_documents` reads it back strictly: an
unknown key, a wrong type or a number that is not finite is a `UserError` that names file and key. Only what a command has is given:
every field but `kind` and `title` may be left out. Units: seconds `_s`, milliseconds `_ms`, bytes; shares are 0.0 to 1.0.
Labels are one of LABELS, optionally followed by ": " and more words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

VERSION = 1
LABELS = ("measured", "fitted", "assumed", "predicted", "simulated", "reported")
Cell = str | float | int | bool | None


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One ceiling of the machine: read bandwidth, peak of a number format. unit: "GB/s", "GFLOP/s", "GOP/s"."""

    name: str
    value: float
    unit: str
    label: str = "measured"


@dataclass(frozen=True, slots=True)
class Setup:
    """Where and how it was measured. machine: CPU, cores, memory, system; versions: program -> version; seeds: what for -> seed;
    commands: exactly as run, engines' own command lines included; dates: ISO; settings: whatever else decides the outcome."""

    machine: Mapping[str, Cell] = field(default_factory=dict)
    versions: Mapping[str, Cell] = field(default_factory=dict)
    seeds: Mapping[str, Cell] = field(default_factory=dict)
    settings: Mapping[str, Cell] = field(default_factory=dict)
    commands: tuple[str, ...] = ()
    ceilings: tuple[Ceiling, ...] = ()
    date: str = ""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds. low and high: bounds of a bootstrap interval of p50, where one was taken."""

    p50: float
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    mean: float | None = None
    max: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class TurnPoint:
    """The requests of one turn of a cell, the first turn is 1."""

    turn: int
    requests: int = 0
    failed: int = 0
    ttft_ms: Percentiles | None = None
    e2e_ms: Percentiles | None = None
    hit_rate: float | None = None


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One cell of a sweep. load: concurrency or requests/s; failed counts against requests; steal and others: shares of CPU time that
    others took; predicted_*: written down before measuring; seconds: from the first request to the last token; turns: where sessions
    have several."""

    load: float
    requests: int = 0
    failed: int = 0
    output_tok_s: float | None = None
    total_tok_s: float | None = None
    requests_s: float | None = None
    goodput_s: float | None = None
    ttft_ms: Percentiles | None = None
    itl_ms: Percentiles | None = None
    tpot_ms: Percentiles | None = None
    e2e_ms: Percentiles | None = None
    predicted_output_tok_s: float | None = None
    predicted_ttft_ms: float | None = None
    predicted_tpot_ms: float | None = None
    hit_rate: float | None = None
    steal: float | None = None
    others: float | None = None
    seconds: float | None = None
    turns: tuple[TurnPoint, ...] = ()


@dataclass(frozen=True, slots=True)
class Curve:
    """A sweep of one engine under one workload: the latency-throughput curve. knee: the load that is marked; saturated: where the sweep
    was stopped; predicted: label of what was predicted for its points."""

    engine: str
    workload: str
    points: tuple[LoadPoint, ...]
    load: Literal["concurrency", "rate"] = "concurrency"
    slo_ttft_ms: float | None = None
    slo_tpot_ms: float | None = None
    knee: float | None = None
    saturated: float | None = None
    label: str = "measured"
    predicted: str = "predicted"


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values of one metric, for a CDF: all of them, or evenly spaced quantiles when there are many (at most a few thousand)."""

    metric: str  # "TTFT", "ITL", "TPOT", "e2e"
    name: str  # engine and load, for the legend
    values: tuple[float, ...]
    unit: str = "ms"
    label: str = "measured"


@dataclass(frozen=True, slots=True)
class RoofPoint:
    """intensity: FLOP (or integer operations) per byte of memory traffic; gflop_s: what was reached."""

    name: str
    intensity: float
    gflop_s: float
    label: str = "measured"


@dataclass(frozen=True, slots=True)
class Roof:
    name: str
    gflop_s: float
    label: str = "measured"


@dataclass(frozen=True, slots=True)
class Roofline:
    """One machine: a bandwidth slope, a roof per number format, and points."""

    title: str
    read_gb_s: float
    roofs: tuple[Roof, ...]
    points: tuple[RoofPoint, ...] = ()
    label: str = "measured"


@dataclass(frozen=True, slots=True)
class Line:
    """(x, y) pairs of one series."""

    name: str
    points: tuple[tuple[float, float], ...]
    label: str = "measured"


@dataclass(frozen=True, slots=True)
class Plot:
    """Any line plot. kind kv_time: x seconds, y share of KV in use; kv_users, kv_context: the same against users and tokens.
    y_unit "%" shows shares as percent."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    kind: Literal["kv_time", "kv_users", "kv_context", "other"] = "other"
    y_unit: str = ""
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class Rung:
    """One rung of the ladder, an optimization added to those before. status: "done", "missing" (does not exist yet), "failed" or "pending".

    The five metrics: output_tok_s, ttft_ms, itl_ms, and KV in use against users and against context, as (x, share) pairs.
    quality: words and numbers beside a lossy rung; lossy rungs without it say so in the report. gain of single steps is computed here
    from round_tok_s, output_tok_s of each round, never given. one_tok_s: throughput of one request at a time on this rung, which tells
    batching from kernels.
    """

    name: str
    status: Literal["done", "missing", "failed", "pending"] = "done"
    why: str = ""
    command: str = ""
    output_tok_s: float | None = None
    one_tok_s: float | None = None
    ttft_ms: Percentiles | None = None
    itl_ms: Percentiles | None = None
    kv_users: tuple[tuple[float, float], ...] = ()
    kv_context: tuple[tuple[float, float], ...] = ()
    predicted_output_tok_s: float | None = None
    predicted_ttft_ms: float | None = None
    predicted_itl_ms: float | None = None
    hit_rate: float | None = None
    lossy: bool = False
    quality: Mapping[str, Cell] = field(default_factory=dict)
    label: str = "measured"
    round_tok_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Ladder:
    """Rungs in order; each one's throughput over the one before makes the waterfall."""

    title: str
    workload: str
    rungs: tuple[Rung, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """One request in time, seconds: waits from arrival to admitted, computes its prompt until first, generates until last."""

    name: str
    arrival_s: float
    admitted_s: float
    first_s: float
    last_s: float


@dataclass(frozen=True, slots=True)
class Gantt:
    """Charts with one `group` are drawn under one time scale. idle: share of sequence slots that decode nothing while a step runs."""

    title: str
    bars: tuple[Bar, ...]
    idle: float | None = None
    output_tok_s: float | None = None
    end_s: float | None = None
    group: str = ""
    label: str = "measured"


@dataclass(frozen=True, slots=True)
class Prediction:
    """One cell of predicted beside measured. The error is computed by the report: predicted / measured - 1."""

    what: str  # the cell: model, prompt, concurrency
    metric: str  # "TPOT ms", "throughput tok/s", "TTFT p95 ms"
    predicted: float
    measured: float
    steal: float | None = None
    label: str = "fitted"  # of the prediction


@dataclass(frozen=True, slots=True)
class Comparison:
    """An A/B in turns. sentence: the plain one ("A is 2.1x B, 95% 1.9-2.3" or "no significant difference"). low, high: None where no
    interval was taken. where: model and load; a_value, b_value: what the ratio is of."""

    a: str
    b: str
    metric: str
    ratio: float
    low: float | None
    high: float | None
    sentence: str
    pairs: int = 0
    significant: bool = False
    higher_is_better: bool = True
    where: str = ""
    a_value: float | None = None
    b_value: float | None = None

    @property
    def lost(self) -> bool:
        """Whether `a` is the worse one."""
        return self.significant and (self.ratio < 1) == self.higher_is_better


@dataclass(frozen=True, slots=True)
class Table:
    """Anything else that is a table: quality, peers, agents. Cells are plain; None is shown as a dash. sources: nothing, or a text for each
    cell that it opens: what it was computed from, who reported it; addresses become links, an empty one opens nothing."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    label: str = "measured"
    sources: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class ReportDocument:
    """What one command measured. definitions: metric -> its one definition, shown beside the numbers."""

    kind: str
    title: str
    setup: Setup = field(default_factory=Setup)
    curves: tuple[Curve, ...] = ()
    distributions: tuple[Distribution, ...] = ()
    rooflines: tuple[Roofline, ...] = ()
    plots: tuple[Plot, ...] = ()
    ladders: tuple[Ladder, ...] = ()
    gantts: tuple[Gantt, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    tables: tuple[Table, ...] = ()
    definitions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    version: int = VERSION
