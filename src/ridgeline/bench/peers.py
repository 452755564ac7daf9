"""`bench peers`: this engine beside each installed peer, on the same files, on this machine, in turns.

Parts: micro (one sequence, llama-bench), batch (many sequences, llama-batched-bench), chat and agents (servers, `bench ab`). llama-bench
and llama-server run with the fastest of their own settings, everything else as it is by default. A part that was measured stays in the
results file; an engine that is not installed is a row that says so.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import ridgeline.bench.ab as ab
import ridgeline.bench.engine as engine_bench
import ridgeline.bench.micro as micro
from ridgeline.bench.engines import ENGINES, Engine, has_module, program, version
from ridgeline.bench.machine_load import crowd
from ridgeline.bench.peer import Settings, fastest
from ridgeline.bench.serve import run as serve
from ridgeline.bench.serve_options import ServeOptions, Source
from ridgeline.errors import FileFormatError, UserError, one_of
from ridgeline.formats.kept import write_json
from ridgeline.options import make_options

Say = Callable[[str], None]
Part = Literal["micro", "batch", "chat", "agents"]
PARTS: tuple[Part, ...] = get_args(Part)
SERVER_SETTINGS = tuple((*fa, *repack) for fa in (("-fa", "on"), ("-fa", "off")) for repack in ((), ("--no-repack",)))
_KEPT = ("output tok/s", "TTFT p50", "TPOT p50", "requests/s", "e2e p50")


@dataclass(frozen=True, slots=True)
class PeersOptions:
    """models: files or aliases; peer_dirs: where peers' programs, and Pythons that have a peer's library, are looked for before PATH.

    repeat: runs of micro and batch; rounds: turns of servers; requests, concurrency: of chat; branches: of agents; seqs: of batch.
    """

    models: tuple[str, ...]
    peer_dirs: tuple[str, ...] = ()
    parts: tuple[Part, ...] = PARTS
    repeat: int = 3
    rounds: int = 3
    requests: int = 16
    concurrency: int = 8
    branches: int = 8
    seqs: int = 32
    threads: int | None = None
    results: Path | None = None
    scale: float = 1.0
    repeats: int = 1

    def __post_init__(self) -> None:
        if not self.models:
            raise UserError("give a MODEL", field="MODEL", remedy="like: ridgeline bench peers smollm2 --peer-dir ~/llama.cpp/build/bin")
        for part in self.parts:
            one_of("--part", part, PARTS)
        for folder in self.peer_dirs:
            if not Path(folder).is_dir():
                raise UserError(f"--peer-dir {folder}: no such folder", field="--peer-dir", value=folder)


@dataclass(frozen=True, slots=True)
class Row:
    """One measure of one model beside one peer. better: whether higher or lower is; ratio: ours over theirs, low..high its 95% interval
    where there were rounds; note: what a reader must know, or why there are no numbers;
    disturbed: share of the CPUs that others took, above 0 where the row is not to be relied on."""

    model: str
    part: str
    measure: str
    peer: str
    ours: float | None = None
    theirs: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    better: Literal["higher", "lower"] = "higher"
    our_command: str = ""
    peer_command: str = ""
    note: str = ""
    disturbed: float = 0.0

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.model, self.part, self.measure, self.peer

    @property
    def ahead(self) -> bool | None:
        """Whether ours is the better one; None without numbers, when others disturbed it, or when the interval holds 1."""
        if self.ratio is None or self.disturbed or (self.low is not None and self.high is not None and self.low <= 1 <= self.high):
            return None
        return (self.ratio > 1) == (self.better == "higher")


@dataclass(frozen=True, slots=True)
class PeersResult:
    """rows: of this run and, where there is a results file, of those before; versions: of programs."""

    rows: tuple[Row, ...]
    versions: dict[str, str]
    remarks: tuple[str, ...]


def run(asked: PeersOptions, say: Say = lambda line: None) -> PeersResult:
    """Raises `UserError` for a model or a peer that cannot be used."""
    before = [] if asked.results is None else read_rows(asked.results)
    rows: dict[tuple[str, str, str, str], Row] = {r.key: r for r in before}
    remarks: list[str] = []
    here, absent = engines_here(asked)
    for model in asked.models:
        for part in asked.parts:
            say(f"{Path(model).name}: {part}")
            found, told = _measure(asked, part, model, here, say)
            rows |= {r.key: r for r in found}
            remarks += told
            if asked.results is not None:
                write_rows(asked.results, list(rows.values()))
    for row in absent:
        rows.setdefault(row.key, _partly(row, list(rows.values())))
    versions = {name: version(ENGINES[name], program(ENGINES[name], path)) or "unknown" for name, path in here.items()}
    return PeersResult(tuple(rows.values()), versions, tuple(dict.fromkeys(remarks)))


def _partly(absent: Row, rows: Sequence[Row]) -> Row:
    """Where other programs of an engine were measured, only its server is not here."""
    measured = dict.fromkeys(r.part for r in rows if r.peer == absent.peer and r.ratio is not None)
    if not measured:
        return absent
    return replace(absent, note=f"no server of {absent.peer} beside {' and '.join(measured)} above: {absent.note}")


def find(asked: PeersOptions, name: str) -> str | None:
    """A peer's program: in the folders that were named, then on PATH."""
    for folder in asked.peer_dirs:
        file = Path(folder) / name
        if file.is_file():
            return str(file)
    return shutil.which(name)


def path_of(asked: PeersOptions, e: Engine) -> str | None:
    """Where a peer's server is, None for wherever it is by itself. A library is found by a Python in one of the folders that has it."""
    if e.script is None:
        return find(asked, e.programs[0]) if e.programs else None
    pythons = (str(Path(folder) / "python") for folder in asked.peer_dirs)
    return next((p for p in pythons if e.module is not None and Path(p).is_file() and has_module(p, e.module)), None)


Measured = tuple[list[Row], list[str]]


def _micro(asked: PeersOptions, model: str, say: Say) -> Measured:
    binary = find(asked, "llama-bench")
    if binary is None:
        return [], ["llama-bench is not installed: one sequence was not compared"]
    options = make_options(model, {"max_model_len": 640, "threads": asked.threads})
    report = micro.run(micro.MicroOptions(options, repeat=asked.repeat, against=binary), say)
    a, name = report.against, Path(model).name
    assert a is not None
    ours = f"ridgeline bench micro {model} --repeat {asked.repeat} --against {binary}"
    loud = crowd(report.load_before)
    return [
        Row(name, "micro", "prompt of 512, tok/s", "llama.cpp", report.prompt_tok_s, a.prompt_tok_s, a.prompt_ratio, our_command=ours,
            peer_command=a.prompt_command, disturbed=loud),
        Row(name, "micro", "one sequence, 128 tokens, tok/s", "llama.cpp", report.gen_tok_s, a.gen_tok_s, a.gen_ratio, our_command=ours,
            peer_command=a.gen_command, disturbed=loud),
    ], []  # fmt: skip


def _batch(asked: PeersOptions, model: str, say: Say) -> Measured:
    binary = find(asked, "llama-batched-bench")
    if binary is None:
        return [], ["llama-batched-bench is not installed: many sequences were not compared"]
    options = make_options(model, {"threads": asked.threads, "max_num_seqs": asked.seqs})
    wanted = engine_bench.EngineBenchOptions(options, ("decode",), asked.seqs, repeat=asked.repeat, against=binary)
    report = engine_bench.run(wanted, say)
    assert report.decode is not None
    ours = f"ridgeline bench engine {model} --scenario decode --seqs {asked.seqs} --repeat {asked.repeat} --against {binary}"
    return [
        Row(Path(model).name, "batch", f"{asked.seqs} sequences decoding, tok/s", "llama.cpp", report.decode.decode_tok_s, p.decode_tok_s,
            p.ratio, our_command=ours, peer_command=p.command, disturbed=crowd(report.load_before))
        for p in report.decode.peers
    ], []  # fmt: skip


def _servers(asked: PeersOptions, model: str, here: Mapping[str, str | None], say: Say, workload: str) -> Measured:
    """Every peer that is here, in turns with ours. One that cannot serve this model (vLLM a GGUF file) ends nothing but its own turn."""
    rows: list[Row] = []
    remarks: list[str] = []
    for name, path in here.items():
        if name == "ridgeline":
            continue
        try:
            found, told = _beside(asked, model, name, path, say, workload)
        except UserError as error:
            found, told = [], [f"nothing was measured beside {name}: {error}"]
        rows += found
        remarks += [f"{Path(model).name}, {workload}: {r}" for r in told]
    return rows, remarks


def _beside(asked: PeersOptions, model: str, name: str, path: str | None, say: Say, workload: str) -> Measured:
    count, users = (asked.branches, 0) if workload == "agents" else (asked.requests, asked.concurrency)
    load = ServeOptions(
        Source(model=model, threads=asked.threads), workload, concurrency=(users,), requests=count, scale=asked.scale,
        repeats=asked.repeats,
    )  # fmt: skip
    peer = Source(model=model, engine=name, engine_path=path, threads=asked.threads)
    peer = best_server(load, peer, say) if name == "llama.cpp" else peer
    result = ab.run(ab.AbOptions(load, load.source, peer, "ridgeline", name, asked.rounds), say)
    where = f"{workload}, {count} sessions, {users or count} at once"
    return [_row(c, model, workload, where, name, result) for c in result.compared if c.metric in _KEPT], list(result.remarks)


def _row(c: ab.Compared, model: str, part: str, where: str, peer: str, result: ab.AbResult) -> Row:
    unit = "" if "/s" in c.metric else ", ms"
    better: Literal["higher", "lower"] = "higher" if c.higher_is_better else "lower"
    ours, theirs = (s.command or "" for s in result.servers)
    low, high = (c.ratio.low, c.ratio.high) if c.ratio.rounds > 1 else (None, None)
    return Row(
        Path(model).name, part, f"{where}: {c.metric}{unit}", peer, c.a, c.b, c.ratio.value, low, high, better, ours, theirs,
        f"{c.ratio.rounds} rounds", c.disturbed,
    )  # fmt: skip


def best_server(load: ServeOptions, peer: Source, say: Say) -> Source:
    """llama-server with the settings that were fastest in one short cell each."""
    short = replace(load, requests=min(load.count, 8), scale=load.scale * 0.5, repeats=0, warmup=0, limit_s=30.0, timeout_s=60.0)

    def measure(settings: Settings) -> float:
        found = serve(replace(short, source=replace(peer, engine_args=settings))).cells[0].figures.output_tok_s or 0.0
        say(f"  {' '.join(settings)}: {found:.1f} output tok/s")
        return found

    return replace(peer, engine_args=fastest(SERVER_SETTINGS, measure)[0])


def _measure(asked: PeersOptions, part: Part, model: str, here: Mapping[str, str | None], say: Say) -> Measured:
    match part:
        case "micro":
            return _micro(asked, model, say)
        case "batch":
            return _batch(asked, model, say)
        case "chat" | "agents":
            return _servers(asked, model, here, say, part)


def engines_here(asked: PeersOptions) -> tuple[dict[str, str | None], list[Row]]:
    """Name -> program (see `path_of`) of the engines that are here; and a row for each that is not: said, never guessed."""
    here: dict[str, str | None] = {}
    absent = []
    for name, e in ENGINES.items():
        path = path_of(asked, e)
        try:
            program(e, path)
            here[name] = path
        except UserError as error:
            absent.append(Row("any", "-", "-", name, note=str(error)))
    return here, absent


def read_rows(path: Path) -> list[Row]:
    """Rows of a results file; none when it is not there. Raises `FileFormatError` for another file."""
    if not path.exists():
        return []
    try:
        return [Row(**row) for row in json.loads(path.read_text("utf8"))["rows"]]
    except (OSError, ValueError, KeyError, TypeError):
        text = f"--results {path}: not a results file"
        raise FileFormatError(text, field="--results", value=str(path), remedy="name a new file") from None


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """What `read_rows` reads."""
    write_json(path, {"kind": "bench peers", "rows": [asdict(r) for r in rows]})
