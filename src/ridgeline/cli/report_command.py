"""`ridgeline bench report`: files of results to one report. Declares the command and writes what was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_RESULTS = "What bench commands or simulate wrote with --json; files of `bench predict` and `bench peers --results`."
Results = Annotated[list[Path], typer.Argument(metavar="RESULT.json", help=_RESULTS)]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="The page: one file that holds everything.")]
Markdown = Annotated[Path | None, typer.Option("--md", metavar="FILE", help="The same as Markdown, without the figures.")]
Merged = Annotated[Path | None, typer.Option("--json-out", metavar="FILE", help="All results in one JSON file.")]
Title = Annotated[str | None, typer.Option("--title", metavar="TEXT", help="Heading of the report.")]
Own = Annotated[bool, typer.Option("--own-only", help="Leave out the figures that others reported.")]


def report(
    results: Results, output: Output = None, md: Markdown = None, json_out: Merged = None, title: Title = None, own_only: Own = False
) -> None:
    """One report of any number of results: set-up, latency and throughput with the knee, CDFs, roofline, KV usage, ladder, predictions.

    \b
    Without -o, --md or --json-out the Markdown goes to stdout. Figures of other people stand apart, with source and date.

    \b
    Examples:
      ridgeline bench serve smollm2 --json > serve.json
      ridgeline bench ladder smollm2 --json > ladder.json
      ridgeline bench report serve.json ladder.json -o report.html --md report.md
      ridgeline bench report serve.json --own-only | less
    """
    from ridgeline.bench.report import read
    from ridgeline.bench.report import report as made
    from ridgeline.cli.output import note, writable

    targets = [writable(path) for path in (output, md, json_out) if path is not None]
    found = made(read(results), title, reported=not own_only)
    for path, text in ((output, found.html), (md, found.markdown), (json_out, found.json)):
        if path is not None:
            path.write_text(text, "utf8")
            note(f"wrote {path} ({len(text.encode()):,} bytes)")
    if not targets:
        print(found.markdown, end="")
