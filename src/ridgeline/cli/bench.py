"""`ridgeline bench micro`: hands the options to `bench/micro` and shows its report."""

from __future__ import annotations

from ridgeline.bench.micro import MicroOptions, render, run
from ridgeline.cli.output import note, print_json
from ridgeline.options import Options


def micro(options: Options, *, prompt: int, gen: int, repeat: int, ops: bool, against: str | None, as_json: bool) -> None:
    """Raises `UserError` for a model or a peer that cannot be used. What takes long is said on stderr."""
    report = run(MicroOptions(options, prompt, gen, repeat, ops, against), note)
    if as_json:
        print_json(report.as_json())
    else:
        print(render(report))
