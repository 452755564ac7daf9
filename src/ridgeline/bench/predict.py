"""Predicted against measured on this host: the engine on a calibrated clock first, written down, then the engine itself.

Both run the same workloads through the same lines (`bench/drive`). Nothing measured here goes back into a prediction. The file keeps each
cell as soon as it is known, so that a run may be cut short and go on later.

A measurement during which others had more than DISTURBED of the CPUs, or beside which the cores were slow (`core_speed`), is kept but does
not count, and is taken again, as long as there is one that was not disturbed: it would tell their speed, not ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import numpy as np

from ridgeline.bench.clocked import Clocked, fitted
from ridgeline.bench.core_speed import SLOW, CoreSpeed
from ridgeline.bench.drive import Driven, drive
from ridgeline.bench.machine_load import cpu_time
from ridgeline.bench.outcome import times
from ridgeline.bench.probe import machine
from ridgeline.bench.record import now
from ridgeline.bench.workloads import ClosedLoop, Lengths, Workload, poisson
from ridgeline.engine.loader import LoadedModel, OpenModel, isa_of, load, make_core, open_model
from ridgeline.errors import FileFormatError, UserError, within
from ridgeline.formats.kept import write_json
from ridgeline.options import Options

Say = Callable[[str], None]
METRICS = ("tpot_ms", "throughput_tok_s", "ttft_p95_ms")
MOST_WAVES, LEAST_POISSON = 8, 8
DISTURBED, MOST_TRIES = 0.03, 4  # share of all CPU time; measurements of a cell beyond those asked for
WARM_UP_USERS = 4


@dataclass(frozen=True, slots=True)
class PredictOptions:
    """file: predictions and measurements, as JSON. repeat: measurements of a cell, whose medians count; cell_s: predicted seconds that a
    cell may take (at least one wave of its users); measure_s: when to stop measuring; 0 only predicts."""

    options: Options
    file: Path
    prompts: tuple[int, ...] = (128, 1024)
    users: tuple[int, ...] = (1, 4, 16, 32)
    output: int = 64
    repeat: int = 1
    cell_s: float = 10.0
    measure_s: float = 3600.0

    def __post_init__(self) -> None:
        lists = {"--prompt": self.prompts, "--users": self.users, "--output": (self.output,), "--repeat": (self.repeat,)}
        for name, values in lists.items():
            for value in values:
                within(name, value, 1, 1 << 20)
        if not self.prompts or not self.users:
            raise UserError("no cell to predict: give --prompt and --users", field="--prompt", value=self.prompts)


@dataclass(frozen=True, slots=True)
class Cell:
    """One load. users > 0: a closed loop of so many; else Poisson arrivals at `rate` a second. All prompts and answers have one length."""

    model: str
    prompt: int
    output: int
    users: int
    rate: float
    requests: int

    @property
    def load(self) -> str:
        return f"{self.users} users" if self.users else f"{self.rate:.3g}/s"

    def workload(self) -> Workload:
        lengths = Lengths(self.prompt, self.output)
        return ClosedLoop(self.requests, self.users, lengths) if self.users else poisson(self.requests, self.rate, lengths)


def run(asked: PredictOptions, say: Say = lambda line: None) -> dict[str, Any]:
    """The document as it then stands in the file. Raises `UserError` without a calibration, or for a file of other predictions."""
    options = replace(asked.options, max_num_seqs=max(asked.options.max_num_seqs, *asked.users))
    model = open_model(options)
    document = _read(asked.file)
    name = Path(model.plan.path).name
    if name not in document["models"]:
        document["models"][name] = _predict(asked, model, name, say)
        _write(asked.file, document)
        say(f"predictions of {name} written to {asked.file}")
    _check_same(asked, model, document["models"][name])
    _measure(asked, options, document, name, say)
    return document


# --- predictions --------------------------------------------------------------------------------------------------------------------


def _predict(asked: PredictOptions, model: OpenModel, name: str, say: Say) -> dict[str, Any]:
    seconds = fitted(model)
    engine, calibration = Clocked(model, seconds), seconds.calibration
    cells = []
    for prompt in asked.prompts:
        busiest = 0.0
        for users in asked.users:
            cell, found = _closed(engine, asked, name, prompt, users)
            busiest = max(busiest, found["throughput_tok_s"])
            cells.append({"cell": asdict(cell), "predicted": found, "measured": []})
        rate = busiest / asked.output / 2
        cell = Cell(name, prompt, asked.output, 0, rate, max(LEAST_POISSON, round(rate * 2 * asked.cell_s)))
        cells.append({"cell": asdict(cell), "predicted": _figures(engine.run(cell.workload())), "measured": []})
        say(f"{name}, prompts of {prompt}: predicted")
    return {
        "written": now(), "calibrated": calibration.date, "calibration_s": calibration.seconds, "host": calibration.host,
        "isa": calibration.isa, "threads": calibration.threads, "kv_dtype": model.plan.kv_dtype, "cells": cells,
    }  # fmt: skip


def _check_same(asked: PredictOptions, model: OpenModel, found: Mapping[str, Any]) -> None:
    """Raises `UserError` for predictions of other loads or of another engine than is asked for now."""
    cells = [Cell(**c["cell"]) for c in found["cells"]]
    pairs: dict[str, tuple[Any, Any]] = {
        "--threads": (found["threads"], model.plan.threads), "--kv-cache-dtype": (found["kv_dtype"], str(model.plan.kv_dtype)),
        "--prompt": ({c.prompt for c in cells}, set(asked.prompts)), "--users": ({c.users for c in cells if c.users}, set(asked.users)),
        "--output": ({c.output for c in cells}, {asked.output}),
    }  # fmt: skip
    for name, (then, given) in pairs.items():
        if then != given:
            text = f"{asked.file} was predicted with another {name}: {_listed(then)}, now it is {_listed(given)}"
            raise UserError(text, field=name, value=_listed(given), limit=_listed(then), remedy="ask as then, or name another --file")


def _listed(value: Any) -> str:
    return ", ".join(map(str, sorted(value))) if isinstance(value, set) else str(value)


def _closed(engine: Clocked, asked: PredictOptions, name: str, prompt: int, users: int) -> tuple[Cell, dict[str, float]]:
    """A closed loop of as many whole waves as are predicted to fit the time."""
    cell = Cell(name, prompt, asked.output, users, 0.0, users)
    one = engine.run(cell.workload())
    waves = max(1, min(MOST_WAVES, int(asked.cell_s / one.seconds)))
    cell = replace(cell, requests=users * waves)
    return cell, _figures(one if waves == 1 else engine.run(cell.workload()))


def _figures(done: Driven) -> dict[str, float]:
    """tpot: mean over requests; ttft: arrival to first token; throughput: output tokens over the time until the last of them."""
    series = times(done.lives)
    made = sum(len(live.token_s) for live in done.lives)
    return {
        "tpot_ms": float(series["tpot_ms"].mean() * 1e3) if len(series["tpot_ms"]) else 0.0, "throughput_tok_s": made / done.seconds,
        "ttft_p95_ms": float(np.percentile(series["ttft_ms"], 95) * 1e3), "seconds": done.seconds,
    }  # fmt: skip


# --- measurements -------------------------------------------------------------------------------------------------------------------


def _measure(asked: PredictOptions, options: Options, document: dict[str, Any], name: str, say: Say) -> None:
    begun = perf_counter()
    cells = document["models"][name]["cells"]
    # In rounds, so that the runs of one cell lie apart in time.
    rounds = [c for n in range(asked.repeat) for c in cells if _missing(c, asked.repeat) > n]
    if not rounds or asked.measure_s <= 0:
        return
    loaded: LoadedModel | None = None
    for entry in rounds:
        cell = Cell(**entry["cell"])
        left = asked.measure_s - (perf_counter() - begun)
        if left < 1.25 * entry["predicted"]["seconds"] + 2:
            say(f"no time left for {cell.prompt} tokens, {cell.load}: run the same command again")
            continue
        if loaded is None:
            loaded = load(options)
            speed = CoreSpeed(machine(loaded.plan.threads, isa_of(loaded.program, loaded.plan)))
            lengths = Lengths(min(asked.prompts), asked.output)
            drive(make_core(loaded), loaded.text, ClosedLoop(WARM_UP_USERS, WARM_UP_USERS, lengths), sleep)
        entry["measured"].append(_once(loaded, cell, speed))
        _write(asked.file, document)
        say(f"{cell.prompt} tokens, {cell.load}: " + ", ".join(f"{m} {error(entry, m):+.1%}" for m in METRICS))


def _missing(entry: Mapping[str, Any], repeat: int) -> int:
    """Measurements still to be taken: `repeat` undisturbed ones, or as many as there may be tries."""
    return min(repeat - len([m for m in entry["measured"] if not disturbed(m)]), repeat + MOST_TRIES - len(entry["measured"]))


def disturbed(found: Mapping[str, Any]) -> bool:
    """speed: of the cores beside it (`core_speed`)."""
    return bool(found["steal"] + found["others"] > DISTURBED or found.get("speed", 1.0) < SLOW)


def _once(loaded: LoadedModel, cell: Cell, speed: CoreSpeed) -> dict[str, Any]:
    before = cpu_time()
    taken = speed.beside(lambda: _figures(drive(make_core(loaded), loaded.text, cell.workload(), sleep)))
    during = cpu_time() - before
    return taken.value | {"steal": during.steal, "others": during.others, "speed": taken.speed, "at": now()}


# --- the table ----------------------------------------------------------------------------------------------------------------------


def measured(entry: Mapping[str, Any], metric: str) -> float | None:
    """Median of a cell's undisturbed measurements, of all when there is no such one; None before the first."""
    return median(m[metric] for m in counted(entry)) if entry["measured"] else None


def counted(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [m for m in entry["measured"] if not disturbed(m)] or entry["measured"]


def error(entry: Mapping[str, Any], metric: str) -> float:
    """Predicted over measured, less one; nan before the first measurement."""
    found = measured(entry, metric)
    return float("nan") if not found else float(entry["predicted"][metric] / found - 1)


def summary(document: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Per metric: median and greatest absolute error over all measured cells."""
    cells = [c for m in document["models"].values() for c in m["cells"] if c["measured"]]
    found = {}
    for metric in METRICS:
        errors = [abs(error(c, metric)) for c in cells]
        found[metric] = {"median": median(errors), "worst": max(errors), "cells": float(len(errors))} if errors else {}
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text("utf8"))
    except FileNotFoundError:
        return {"models": {}}
    except (OSError, ValueError) as wrong:
        raise FileFormatError(f"{path}: {wrong}", field=str(path), remedy="name another --file") from None
    if not isinstance(document, dict) or not isinstance(document.get("models"), dict):
        raise FileFormatError(f"{path}: not a file of predictions", field=str(path), remedy="name another --file")
    return document


def _write(path: Path, document: Mapping[str, Any]) -> None:
    try:
        write_json(path, document)
    except OSError as wrong:
        raise UserError(f"{path}: {wrong.strerror or wrong}", field="--file", value=str(path), remedy="name another file") from None


HEADER = (
    "model", "prompt", "load", "requests", "TPOT ms", "measured", "error", "tok/s", "measured", "error", "TTFT p95 ms", "measured", "error",
    "steal", "others", "cores", "runs",
)  # fmt: skip


def rows(document: Mapping[str, Any]) -> list[list[str]]:
    """The table under HEADER, one row per cell."""
    return [_row(name, entry) for name, model in document["models"].items() for entry in model["cells"]]


def _row(name: str, entry: Mapping[str, Any]) -> list[str]:
    cell = Cell(**entry["cell"])
    row = [name, str(cell.prompt), cell.load, str(cell.requests)]
    for metric in METRICS:
        found = measured(entry, metric)
        row.append(f"{entry['predicted'][metric]:.4g}")
        row += ["-", "-"] if found is None else [f"{found:.4g}", f"{error(entry, metric):+.1%}"]
    taken = counted(entry)
    if not taken:
        return [*row, "-", "-", "-", "0"]
    tries = f"{len(taken)} of {len(entry['measured'])}"
    shares = (median(m.get(key, 1.0) for m in taken) for key in ("steal", "others", "speed"))
    return [*row, *(f"{share:.1%}" for share in shares), tries]
