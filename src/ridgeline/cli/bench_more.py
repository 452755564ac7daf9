"""The bench commands that have a module of their own, registered together."""

from __future__ import annotations

import typer

import ridgeline.cli.ladder_command as ladder_command
import ridgeline.cli.prefix_command as prefix_command
import ridgeline.cli.quality_command as quality_command


def register(bench: typer.Typer) -> None:
    """Add them to `ridgeline bench`."""
    quality_command.register(bench)
    ladder_command.register(bench)
    prefix_command.register(bench)
