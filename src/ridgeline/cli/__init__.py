"""The command line: one entry point, and the rule how errors reach a terminal. Commands are in the modules beside this one.

Exit codes: 0 done, 1 we broke something, 2 the user gave something unusable, 130 Ctrl-C, 141 the reader of our output went away.
"""

from __future__ import annotations

import os
import sys

# Nothing else is imported out here: Ctrl-C may come while that runs, and only `main` can end quietly then.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Pools that libraries would start beside the engine's own threads, which take the whole budget. Read when a library is loaded.
_POOLS = {"OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Every failure is one plain line on stderr; RIDGELINE_DEBUG=1 adds the traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        from ridgeline.cli.start import starting

        with starting():
            _one_pool()
            from ridgeline.cli.app import app

        code = app(args=given, prog_name="ridgeline", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return _reader_gone()
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 1
    except Exception as error:
        return _report(error, as_json="--json" in given)


def _one_pool() -> None:
    """What the user has set stays; a process that has numpy already is somebody else's, and its children are not ours to limit."""
    if "numpy" not in sys.modules:
        for name, value in _POOLS.items():
            os.environ.setdefault(name, value)


def _report(error: Exception, *, as_json: bool) -> int:
    from ridgeline.cli.output import error_document, error_line, print_json
    from ridgeline.errors import UserError

    if os.environ.get("RIDGELINE_DEBUG"):
        import traceback

        traceback.print_exc()
    usage = getattr(error, "format_message", None)  # typer's own complaints about the command line
    line = str(usage()) if callable(usage) else error_line(error)
    try:
        print("error: " + " ".join(line.split()), file=sys.stderr, flush=True)
        if as_json and not callable(usage):
            print_json({"error": error_document(error)})
    except BrokenPipeError:
        _reader_gone()
    return 2 if callable(usage) or isinstance(error, UserError) else 1


def _reader_gone() -> int:
    """Nothing more can be written; keep the interpreter's last flush from complaining."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141
