"""Runs what `bench_serve` declares and shows it: progress on stderr, the result on stdout, records into a file."""

from __future__ import annotations

import json
from pathlib import Path

import ridgeline.bench.ab as sides
import ridgeline.bench.ab_show as ab_show
import ridgeline.bench.peers as peers
import ridgeline.bench.peers_show as peers_show
import ridgeline.bench.serve as serves
from ridgeline import __version__
from ridgeline.bench.serve_document import document, records
from ridgeline.bench.serve_options import ServeOptions
from ridgeline.bench.serve_text import render
from ridgeline.cli.output import note, print_json, writable


def measure_serve(asked: ServeOptions, out: Path | None, *, as_json: bool) -> None:
    """Raises `UserError` for what cannot be measured."""
    if out is not None:
        writable(out)
    result = serves.run(asked, note)
    if out is not None:
        lines = (json.dumps(r, ensure_ascii=True) + "\n" for cell in result.cells for r in records(cell))
        out.write_text("".join(lines), "utf8")
    if as_json:
        print_json(document(result, __version__))
    else:
        print(render(result))


def measure_ab(asked: sides.AbOptions, *, as_json: bool) -> None:
    """Raises `UserError` for a side that cannot be measured."""
    result = sides.run(asked, note)
    if as_json:
        print_json(ab_show.document(result))
    else:
        print(ab_show.render(result))


def measure_peers(asked: peers.PeersOptions, into: Path | None, *, as_json: bool) -> None:
    """Raises `UserError` for a model or a peer that cannot be used."""
    result = peers.run(asked, note)
    text = peers_show.markdown(result)
    if into is not None:
        peers_show.insert(into, text)
    if as_json:
        print_json(peers_show.document(result))
    else:
        print(text)
