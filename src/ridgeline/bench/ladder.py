"""`bench ladder`: the same prompts on one rung after the other, each in a fresh process, in rounds; resumable, with raw logs.

Knows the order of cells, their processes and their time. Numbers are made elsewhere; what cannot run is listed, never invented.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from ridgeline.bench.engines_process import die_with_parent, last_line
from ridgeline.bench.ladder_cell import predict
from ridgeline.bench.ladder_numbers import Numbers, numbers, numbers_from
from ridgeline.bench.ladder_plan import RUNGS, Load, Rung, options_of, prompts
from ridgeline.bench.ladder_state import LadderState
from ridgeline.bench.machine_load import LIMIT
from ridgeline.bench.record import clock_text, now
from ridgeline.engine.loader import open_model
from ridgeline.engine.words import open_words
from ridgeline.errors import UserError, one_of, within
from ridgeline.options import Options

Say = Callable[[str], None]
HF_SCRIPT = Path(__file__).with_name("ladder_hf.py")


@dataclass(frozen=True, slots=True)
class LadderOptions:
    """python: one with torch and transformers, None for no such rung; hf_requests: it answers the first so many prompts, 0 for all;
    rounds: every rung so often, in turns; seconds: no cell is begun after that; rungs: keys, () for all; quality_positions: per text,
    beside lossy rungs, 0 for none; retries: of a cell during which others had more than `machine_load.LIMIT` of the CPUs."""

    model: str
    load: Load
    folder: Path
    rounds: int = 1
    threads: int | None = None
    python: Path | None = None
    hf_dtype: str = "float32"
    hf_requests: int = 0
    rungs: tuple[str, ...] = ()
    seconds: float = 86400.0
    cell_timeout_s: float = 3600.0
    quality_positions: int = 500
    overwrite: bool = False
    retries: int = 0

    def __post_init__(self) -> None:
        for name in self.rungs:
            one_of("--rung", name, [r.key for r in RUNGS])
        within("--rounds", self.rounds, 1, 100)
        within("--transformers-requests", self.hf_requests, 0, self.load.requests)
        if self.python is not None and not self.python.exists():
            raise UserError(f"--transformers-python {self.python}: no such file", field="--transformers-python", value=str(self.python))
        one_of("--transformers-dtype", self.hf_dtype, ("float32", "bfloat16", "float16"))


@dataclass(frozen=True, slots=True)
class RungResult:
    """status: done, missing (does not exist here), failed or pending. runs: one per round that was measured. raw: the last one's file."""

    rung: Rung
    status: str
    why: str = ""
    command: str = ""
    runs: tuple[Numbers, ...] = ()
    predicted: Numbers | None = None
    label: str = ""
    quality: dict[str, Any] | None = None
    raw: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class LadderResult:
    model: str
    load: Load
    threads: int
    rounds: int
    rungs: tuple[RungResult, ...]
    folder: str
    left: int  # cells that have not run


def run(asked: LadderOptions, say: Say = lambda line: None) -> LadderResult:
    """What the folder knows after this run. Raises `UserError` for a model, a load or a folder that cannot be used."""
    ladder = _Ladder(asked, say)
    try:
        ladder.predict()
        ladder.climb()
        ladder.judge()
        return ladder.result()
    finally:
        ladder.state.close()


class _Ladder:
    """One run of the command."""

    def __init__(self, asked: LadderOptions, say: Say) -> None:
        self.asked, self.say = asked, say
        self.begun = perf_counter()
        base = Options(asked.model, threads=asked.threads, max_num_seqs=asked.load.slots, max_model_len=_length(asked))
        opened = open_model(replace(base, kv_cache_dtype="bf16"))
        self.plan = opened.plan
        tokenizer = open_words(opened.checkpoint).tokenizer
        self.prompts = prompts(asked.load, tokenizer)
        hf = f"{asked.hf_dtype}, {asked.hf_requests or 'all'} requests"
        settings = {
            "model": str(Path(self.plan.path).resolve()), "load": asdict(asked.load), "threads": self.plan.threads, "isa": self.plan.isa,
            "transformers": hf,
        }  # fmt: skip
        self.state = LadderState(asked.folder, settings, overwrite=asked.overwrite)
        self.rungs = [r for r in RUNGS if not asked.rungs or r.key in asked.rungs]
        if self.state.resumed:
            say(f"{self.state.resumed} cells were measured before ({asked.folder})")

    def why_not(self, rung: Rung) -> str | None:
        """Why a rung is not climbed; None when it is."""
        if rung.engine == "transformers" and self.asked.python is None:
            return "not installed here: name a Python that has torch and transformers with --transformers-python"
        return None

    def spec(self, rung: Rung) -> dict[str, Any]:
        """All that a cell is told."""
        common = {"rung": rung.key, "prompts": self.prompts, "outputs": self.asked.load.outputs}
        if rung.engine == "transformers":
            some = self.asked.hf_requests or len(self.prompts)
            common |= {"prompts": self.prompts[:some], "outputs": self.asked.load.outputs[:some]}
            return common | {"path": self.plan.path, "threads": self.plan.threads, "dtype": self.asked.hf_dtype}
        slots = 1 if rung.wave == "one" else self.asked.load.slots
        options = {
            "max_model_len": self.plan.max_model_len, "threads": self.plan.threads, "max_num_seqs": slots,
            "kv_cache_memory_bytes": self.plan.kv_bytes, **options_of(rung.key),
        }  # fmt: skip
        wave = {"one": 1, "slots": slots, "free": 0}[rung.wave]
        return common | {"model": self.asked.model, "options": options, "wave": wave}

    # --- predictions ------------------------------------------------------------------------------------------------------------

    def predict(self) -> None:
        """Written down before anything is measured; what depends on the words is left out."""
        for rung in self.rungs:
            if rung.engine != "ridgeline" or rung.key == "ngram" or self.why_not(rung) or rung.key in self.state.document["predictions"]:
                continue
            found, label = predict(self.spec(rung))
            self.state.document["predictions"][rung.key] = {"numbers": asdict(numbers(asdict(found))), "label": label, "at": now()}
            self.state.save()

    # --- cells ------------------------------------------------------------------------------------------------------------------

    def cells(self) -> list[tuple[str, Rung]]:
        """Cells that have not run, round by round."""
        found = []
        for number in range(self.asked.rounds):
            for rung in self.rungs:
                key = f"{rung.key}-{number}"
                if self.why_not(rung) is None and self.state.result(key) is None:
                    found.append((key, rung))
        return found

    def climb(self) -> None:
        left = self.cells()
        for number, (key, rung) in enumerate(left):
            if number and not self._fits(rung):
                passed = clock_text(perf_counter() - self.begun)
                self.say(f"{len(left) - number} cells are left after {passed}: the same command goes on with them")
                return
            rest = [self._estimate(r) for _, r in left[number:]]
            known = sum(s for s in rest if s is not None)
            eta = clock_text(known) + (" and what was never measured" if None in rest else "")
            self.say(f"{key} ({number + 1} of {len(left)}), ETA {eta}")
            self._cell(key, rung)

    def _estimate(self, rung: Rung) -> float | None:
        """Seconds of a cell: as it took before, else as predicted."""
        took = [c["wall_s"] for k, c in self.state.cells.items() if k.rpartition("-")[0] == rung.key and "wall_s" in c]
        if took:
            return float(took[-1])
        predicted = self.state.document["predictions"].get(rung.key)
        return None if predicted is None else float(predicted["numbers"]["seconds"]) + 2.0

    def _cell(self, key: str, rung: Rung) -> None:
        """Measure; again while others had too much of the machine, and keep the quietest."""
        out, tries = self.state.raw(key), 0
        cell = self._measure(key, rung, out)
        while cell.get("noise", 0.0) > LIMIT and tries < self.asked.retries and self._fits(rung):
            tries += 1
            self.say(f"{key}: others had {cell['noise']:.0%} of the CPUs, measured again")
            again = self._measure(key, rung, out.with_suffix(".again.json"))
            if again.get("noise", 1.0) < cell["noise"]:
                out.with_suffix(".again.json").replace(out)
                cell = again
        self.state.cells[key] = cell | {"tries": 1 + tries}
        self.state.save()

    def _fits(self, rung: Rung) -> bool:
        return perf_counter() - self.begun + (self._estimate(rung) or 0.0) <= self.asked.seconds

    def _measure(self, key: str, rung: Rung, out: Path) -> dict[str, Any]:
        """One process. {"seconds", "noise"} or {"failed"}, with wall time and command."""
        spec, log = self.state.folder / "raw" / f"{key}.spec.json", self.state.log(key)
        spec.write_text(json.dumps(self.spec(rung)), "utf8")
        out.unlink(missing_ok=True)
        command = self.command(rung, spec, out)
        begun = perf_counter()
        why = run_logged(command, log, self.asked.cell_timeout_s)
        cell: dict[str, Any] = {"wall_s": perf_counter() - begun, "command": command, "at": now()}
        try:
            found = json.loads(out.read_text("utf8"))
            cell |= {"seconds": found["seconds"], "noise": found["steal"] + found["others"]}
        except (OSError, ValueError, KeyError):
            cell["failed"] = why or "it wrote no result"
            self.say(f"{key} failed: {cell['failed']} (log: {log})")
        return cell

    def command(self, rung: Rung, spec: Path, out: Path) -> list[str]:
        if rung.engine == "transformers":
            return [str(self.asked.python), str(HF_SCRIPT), str(spec), str(out)]
        return [sys.executable, "-m", "ridgeline.bench.ladder_cell", str(spec), str(out)]

    # --- quality ----------------------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Beside every lossy rung that ran: how far its words' probabilities moved, by `bench quality` in a process of its own."""
        for rung in self.rungs:
            done = self.state.document["quality"]
            if not rung.lossy or rung.key in done or not self.asked.quality_positions:
                continue
            if not any(self.state.result(f"{rung.key}-{n}") for n in range(self.asked.rounds)):
                continue
            if perf_counter() - self.begun > self.asked.seconds:
                self.say("the quality of lossy rungs is left: the same command goes on with it")
                return
            command = [
                sys.executable, "-m", "ridgeline", "bench", "quality", self.asked.model, "--no-tasks", "--json", "--kv-cache-dtype",
                str(rung.options["kv_cache_dtype"]), "--base-kv-cache-dtype", "auto", "--positions", str(self.asked.quality_positions),
            ]  # fmt: skip
            self.say(f"quality of {rung.name}")
            log = self.state.log(f"{rung.key}-quality")
            why = run_logged(command, log, self.asked.cell_timeout_s, stderr=log.with_suffix(".err"))
            try:
                found = json.loads(log.read_text("utf8"))
                done[rung.key] = _worst(found) | {"command": " ".join(command)}
            except (OSError, ValueError, KeyError):
                self.say(f"quality of {rung.name} failed: {why} (log: {log})")
            self.state.save()

    # --- the end ----------------------------------------------------------------------------------------------------------------

    def result(self) -> LadderResult:
        found = tuple(self._rung(r) for r in self.rungs)
        return LadderResult(
            Path(self.plan.path).name,
            self.asked.load,
            self.plan.threads,
            self.asked.rounds,
            found,
            str(self.asked.folder),
            len(self.cells()),
        )

    def _rung(self, rung: Rung) -> RungResult:
        why = self.why_not(rung)
        keys = [f"{rung.key}-{n}" for n in range(self.asked.rounds)]
        raws = [r for r in map(self.state.result, keys) if r is not None]
        cells = [self.state.cells[k] for k in keys if k in self.state.cells]
        told = self.state.document["predictions"].get(rung.key)
        predicted = None if told is None else numbers_from(told["numbers"])
        label = "" if told is None else told["label"]
        if raws:
            return RungResult(
                rung, "done", "", " ".join(cells[0].get("command", [])), tuple(numbers(r) for r in raws), predicted, label,
                self.state.document["quality"].get(rung.key), raws[-1],
            )  # fmt: skip
        if why is not None:
            return RungResult(rung, "missing", why, predicted=predicted, label=label)
        failed = next((c["failed"] for c in cells if "failed" in c), None)
        return RungResult(rung, "failed" if failed else "pending", failed or "", predicted=predicted, label=label)


def _length(asked: LadderOptions) -> int:
    """Room for the longest request; a draft may look a few tokens ahead."""
    return asked.load.longest + 16


def _worst(found: dict[str, Any]) -> dict[str, Any]:
    """What the gate of `bench quality` looked at, in the worst text."""
    values = {c["measure"]: c["value"] for c in found["checks"]}
    return {
        "KL mean": values["KL mean"], "KL 99.9%": values["KL 99.9%"], "top-1": values["top-1 agreement"],
        "perplexity rise": values["perplexity rise"], "positions": sum(t["positions"] for t in found["texts"]),
    }  # fmt: skip


def run_logged(command: list[str], log: Path, timeout_s: float, stderr: Path | None = None) -> str | None:
    """Run to the end with all output in `log`, or errors apart in `stderr`. What went wrong, or None. The process ends with us."""
    environment = dict(os.environ)
    if command[0] == sys.executable:  # another Python must not find our libraries
        ours = str(Path(__file__).parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [ours, environment.get("PYTHONPATH")]))
    else:
        environment.pop("PYTHONPATH", None)
    with log.open("wb") as file, (stderr or Path(os.devnull)).open("wb") as errors:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=errors if stderr else subprocess.STDOUT, env=environment,
                preexec_fn=die_with_parent,
            )  # fmt: skip
        except OSError as error:
            return f"cannot start {command[0]}: {error.strerror or error}"
        try:
            code = process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return f"it took more than {timeout_s:g} s"
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    return None if code == 0 else f"exit code {code}: {last_line(stderr or log)}"
