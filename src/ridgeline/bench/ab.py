"""`bench ab`: two servers under the same load in turns, A B B A, and what may be said of the difference. Orchestration only.

Both sides get the same prompts in a round, but for the salt that begins them (new ones each round). A round's ratio is one observation:
what disturbed both sides cancels.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median

from ridgeline.bench.client_metrics import Figures
from ridgeline.bench.engines import engine, program
from ridgeline.bench.record import command_line
from ridgeline.bench.serve import least, served
from ridgeline.bench.serve_cells import Bench, Cell
from ridgeline.bench.serve_options import ServeOptions, Source
from ridgeline.bench.serve_server import Server
from ridgeline.bench.stats import MIN_ROUNDS, Ratio, paired_ratio, sentence
from ridgeline.errors import UserError, within

Say = Callable[[str], None]
MAX_ROUNDS = 200


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure that is compared. of: its value in a cell, None where there is none."""

    name: str
    of: Callable[[Figures], float | None]
    higher_is_better: bool


METRICS = (
    Metric("output tok/s", lambda f: f.output_tok_s, True), Metric("requests/s", lambda f: f.requests_s, True),
    Metric("TTFT p50", lambda f: None if f.ttft_ms is None else f.ttft_ms.p50, False),
    Metric("TPOT p50", lambda f: None if f.tpot_ms is None else f.tpot_ms.p50, False),
    Metric("ITL p99", lambda f: None if f.itl_ms is None else f.itl_ms.p99, False),
    Metric("e2e p50", lambda f: None if f.e2e_ms is None else f.e2e_ms.p50, False),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AbOptions:
    """asked: the load, with A's source; a, b: who is compared, with the names that sentences use."""

    asked: ServeOptions
    a: Source
    b: Source
    name_a: str
    name_b: str
    rounds: int = 5

    def __post_init__(self) -> None:
        within("--rounds", self.rounds, 1, MAX_ROUNDS)
        if self.name_a == self.name_b:
            remedy = "name them apart with --name-a and --name-b"
            raise UserError(f"both sides are called {self.name_a}", field="--name-b", value=self.name_b, remedy=remedy)


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric at one load. ratio: A over B. disturbed: the largest share of the CPUs that others took in any cell, where that was so in
    more than a quarter of them; else 0."""

    load: float
    metric: str
    a: float
    b: float
    ratio: Ratio
    sentence: str
    higher_is_better: bool = True
    disturbed: float = 0.0


@dataclass(frozen=True, slots=True)
class AbResult:
    """rounds: (round, side, cell) in the order in which they ran."""

    asked: AbOptions
    servers: tuple[Server, Server]
    rounds: tuple[tuple[int, str, Cell], ...]
    compared: tuple[Compared, ...]
    remarks: tuple[str, ...]
    command: str


def run(asked: AbOptions, say: Say = lambda line: None) -> AbResult:
    """Both servers stay up; only one is asked at a time. Raises `UserError` when one of them cannot be measured."""
    with ExitStack() as both:
        found = [both.enter_context(served(replace(asked.asked, source=source), say)) for source in (asked.a, asked.b)]
        # Prompts fit both and are cut by A's tokenizer, so that both read the same text.
        limit = least(*(options.model_limit for options, _ in found))
        benches = [Bench(replace(options, model_limit=limit), server, say) for options, server in found]
        sides = list(zip((asked.name_a, asked.name_b), benches, strict=True))
        warm = [bench.warm_up() for bench in benches]
        warm = [replace(w, characters=warm[0].characters) for w in warm]
        rounds: list[tuple[int, str, Cell]] = []
        for number in range(asked.rounds):
            order = (0, 1) if number % 2 == 0 else (1, 0)
            for load in asked.asked.rates or asked.asked.loads:
                for side in order:
                    name, bench = sides[side]
                    users, rate = (None, load) if asked.asked.rates else (int(load), None)
                    cell = bench.cell(warm[side], users, rate, seed=asked.asked.seed + number)
                    rounds.append((number, name, cell))
                    f = cell.figures
                    say(f"round {number + 1}, {load:g}, {name}: {f.output_tok_s or 0:.1f} output tok/s, {f.failed} failed")
        servers = (benches[0].server, benches[1].server)
    return AbResult(asked, servers, tuple(rounds), *compare(asked, rounds), command_line())


def compare(asked: AbOptions, rounds: Sequence[tuple[int, str, Cell]]) -> tuple[tuple[Compared, ...], tuple[str, ...]]:
    """Every metric at every load, and remarks about what weakens it."""
    found: list[Compared] = []
    remarks: list[str] = []
    for load in dict.fromkeys(cell.load for _, _, cell in rounds):
        at = {(number, name): cell for number, name, cell in rounds if cell.load == load}
        loud = _loud(list(at.values()))
        for metric in METRICS:
            a, b = _pairs(asked, at, metric)
            if a:
                ratio = paired_ratio(a, b, asked.asked.seed)
                text = sentence(asked.name_a, asked.name_b, ratio, higher_is_better=metric.higher_is_better)
                if loud:
                    text += f"; NOT to be relied on: others took up to {loud:.0%} of the CPUs"
                found.append(Compared(load, metric.name, median(a), median(b), ratio, text, metric.higher_is_better, loud))
        remarks += _remarks(at, load)
    if asked.rounds < MIN_ROUNDS:
        remarks.append(f"{asked.rounds} rounds say nothing about significance; {MIN_ROUNDS} at least, 5 or more are better")
    return tuple(found), tuple(remarks)


def _pairs(asked: AbOptions, at: dict[tuple[int, str], Cell], metric: Metric) -> tuple[list[float], list[float]]:
    """Values of the rounds in which both sides have one."""
    pairs = []
    for number in range(asked.rounds):
        both = [at.get((number, name)) for name in (asked.name_a, asked.name_b)]
        values = [None if cell is None else metric.of(cell.figures) for cell in both]
        if values[0] and values[1]:
            pairs.append((values[0], values[1]))
    return [a for a, _ in pairs], [b for _, b in pairs]


def _loud(cells: Sequence[Cell]) -> float:
    """See `Compared.disturbed`."""
    shares = [c.noise.taken for c in cells if c.noise is not None and c.noise.disturbed]
    return max(shares) if 4 * len(shares) > len(cells) else 0.0


def _remarks(at: dict[tuple[int, str], Cell], load: float) -> list[str]:
    found = []
    for name in dict.fromkeys(name for _, name in at):
        cells = [cell for (_, n), cell in at.items() if n == name]
        failed = sum(c.figures.failed for c in cells)
        if failed:
            why = next(iter(next(c.figures.failures for c in cells if c.figures.failures)))
            found.append(f"at {load:g}: {failed} of {sum(c.figures.requests for c in cells)} requests of {name} failed ({why})")
        loud = [c.noise.taken for c in cells if c.noise is not None and c.noise.disturbed]
        if loud:
            text = f"in {len(loud)} of {len(cells)} cells of {name} others took over 5% of the CPUs (at most {max(loud):.0%})"
            found.append(f"at {load:g}: {text}")
        if any(c.figures.itl_basis.get("events") for c in cells) and min(c.figures.events_per_token or 1.0 for c in cells) < 0.95:
            found.append(f"at {load:g}: {name} sends several tokens an event: compare TPOT, not ITL")
    return found


def side(text: str, model: str | None, context: int | None, threads: int | None) -> tuple[Source, str]:
    """A side as it is typed: a URL, or ENGINE[=PROGRAM] and options for it. Raises `UserError`."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"{text!r}: {error}", field="--a", value=text) from None
    if not words:
        raise UserError("a side is empty", field="--a", value=text, remedy="give a URL or ENGINE[=PROGRAM] [OPTIONS]")
    if "://" in words[0]:
        if words[1:]:
            raise UserError(f"{text!r}: a server that runs takes no options", field="--a", value=text)
        return Source(words[0], context=context, threads=threads), words[0]
    name, _, path = words[0].partition("=")
    program(engine(name), path or None)  # before anything is started
    if model is None:
        raise UserError(f"{name} needs a MODEL to serve", field="MODEL", remedy="like: ridgeline bench ab smollm2 --b llama.cpp")
    found = Source(None, model, name, path or None, tuple(words[1:]), context=context, threads=threads)
    return found, " ".join([name, *words[1:]])
