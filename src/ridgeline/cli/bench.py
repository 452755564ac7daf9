"""`ridgeline bench ...`: hands the options to `bench/` and shows its reports."""

from __future__ import annotations

from pathlib import Path

import ridgeline.bench.accuracy as accuracies
import ridgeline.bench.engine as engines
import ridgeline.bench.lengths as context
from ridgeline import __version__
from ridgeline.bench.lengths_report import document as lengths_document
from ridgeline.bench.micro import MicroOptions, render, run
from ridgeline.bench.micro_report import document as micro_document
from ridgeline.bench.report_json import to_json
from ridgeline.cli.output import note, print_json
from ridgeline.options import Options


def micro(options: Options, *, prompt: int, gen: int, repeat: int, ops: bool, against: str | None, as_json: bool) -> None:
    """Raises `UserError` for a model or a peer that cannot be used. What takes long is said on stderr."""
    report = run(MicroOptions(options, prompt, gen, repeat, ops, against), note)
    if as_json:
        print_json(report.as_json() | {"report": to_json(micro_document(report, __version__))})
    else:
        print(render(report))


def engine(asked: engines.EngineBenchOptions, *, as_json: bool) -> None:
    """Raises `UserError` for a model or a peer that cannot be used. What takes long is said on stderr."""
    report = engines.run(asked, note)
    if as_json:
        print_json(report.as_json())
    else:
        print(engines.render(report))


def accuracy(options: Options, *, text: Path | None, positions: int, window: int, as_json: bool) -> None:
    """Raises `UserError` for a model or a text that cannot be used. What takes long is said on stderr."""
    report = accuracies.run(accuracies.AccuracyOptions(options, text, positions, window), note)
    if as_json:
        print_json(report.as_json())
    else:
        print(accuracies.render(report))


def lengths(options: Options, tokens: tuple[int, ...], *, repeat: int, as_json: bool) -> None:
    """Raises `UserError` for a model or lengths that cannot be used. What takes long is said on stderr."""
    report = context.run(context.LengthOptions(options, tokens, repeat), note)
    if as_json:
        print_json(report.as_json() | {"report": to_json(lengths_document(report, __version__))})
    else:
        print(context.render(report))
