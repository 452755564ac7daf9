"""The layout of docs and design as a test: levels, no circles, who may never see whom, lengths, annotations, leftovers.

Reads source text only. Lazy and type-only imports count as imports.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
LEVELS: tuple[tuple[str, ...], ...] = (
    ("types", "errors", "encodings", "options"),
    ("graph", "formats", "text", "kv", "sampling"),
    ("models", "quant", "scheduler", "spec"),
    ("planner", "backends"),
    ("engine",),
    ("server", "cluster", "bench"),
    ("cli", "__main__"),
)
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
NO_BACKENDS = {"scheduler", "planner", "models", "spec", "graph", "kv"}
MAX_FUNCTION_LINES, MAX_FILE_LINES = 60, 400
LEFTOVER = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK", "NotImplemented" + "Error")) + r")\b")


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file, packages by their own name."""
    found = {}
    for path in sorted((SOURCE / "ridgeline").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf8"), str(path))


def imported(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of ours that this one names in any import statement, wherever it stands."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    wanted: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            wanted.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # `from a import b` runs a, and a.b when that is a module; the top package is not counted for its modules.
            inner = [f"{base}.{a.name}" for a in node.names]
            wanted.update(inner if base == "ridgeline" and all(i in known for i in inner) else [base, *inner])
    return {w for w in wanted if w in known and w != name}


@cache
def graph() -> dict[str, frozenset[str]]:
    return {name: frozenset(imported(name, path, modules())) for name, path in modules().items()}


def room(name: str) -> str:
    return [*name.split("."), ""][1]


def circles(edges: dict[str, frozenset[str]]) -> Iterator[list[str]]:
    """One path back to itself for every module that lies on a circle."""
    for start in edges:
        came: dict[str, str] = {}
        queue = [start]
        for here in queue:
            for there in edges.get(here, ()):
                if there == start:
                    path = [here]
                    while path[-1] != start:
                        path.append(came[path[-1]])
                    yield path[::-1]
                    queue.clear()
                    break
                if there not in came:
                    came[there] = here
                    queue.append(there)


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in modules().values():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def test_every_room_has_a_level() -> None:
    assert sorted({room(n) for n in modules()} - {""} - set(LEVEL)) == []


def test_no_import_climbs() -> None:
    # The package itself (`ridgeline`) is a door: it offers LLM, and nothing below may use it as a way up.
    climbing = [f"{a} -> {b}" for a, bs in graph().items() for b in bs if room(a) and LEVEL[room(a)] < LEVEL.get(room(b), 0)]
    assert climbing == []


def test_nobody_imports_through_the_door() -> None:
    allowed = {"cli"}  # for __version__
    assert [a for a, bs in graph().items() if "ridgeline" in bs and room(a) not in allowed] == []


def test_no_circles() -> None:
    assert list(circles(graph())) == []


def test_some_rooms_never_see_backends() -> None:
    assert [f"{a} -> {b}" for a, bs in graph().items() for b in bs if room(a) in NO_BACKENDS and room(b) == "backends"] == []


def test_only_cli_imports_server() -> None:
    assert [f"{a} -> {b}" for a, bs in graph().items() for b in bs if room(b) == "server" and room(a) not in ("server", "cli")] == []


def test_functions_and_files_are_short() -> None:
    long = [where for where, f in functions() if (f.end_lineno or f.lineno) - f.lineno + 1 > MAX_FUNCTION_LINES]
    long += [str(p.relative_to(ROOT)) for p in modules().values() if p.read_text("utf8").count("\n") > MAX_FILE_LINES]
    assert long == []


def test_everything_is_annotated() -> None:
    bare = []
    for where, f in functions():
        arguments = [*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs]
        if f.returns is None or any(a.annotation is None and a.arg not in ("self", "cls") for a in arguments):
            bare.append(where)
    assert bare == []


def test_every_module_says_what_it_knows() -> None:
    assert [n for n, p in modules().items() if p.read_text("utf8").strip() and not ast.get_docstring(tree(p))] == []


def test_nothing_is_left_over() -> None:
    files = [*modules().values(), *(SOURCE / "ridgeline").rglob("*.cc"), *(SOURCE / "ridgeline").rglob("*.h")]
    lines = ((f"{p.relative_to(ROOT)}:{i}", line) for p in files for i, line in enumerate(p.read_text("utf8").splitlines(), 1))
    assert [where for where, line in lines if LEFTOVER.search(line)] == []


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, 0),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}}, 3),
        ({"a": {"a2"}, "a2": set(), "b": {"c", "a"}, "c": {"b"}}, 2),
    ],
)
def test_the_circle_finder_finds_circles(edges: dict[str, set[str]], expected: int) -> None:
    assert len(list(circles({k: frozenset(v) for k, v in edges.items()}))) == expected


def test_the_import_reader_sees_lazy_relative_and_type_only_imports(tmp_path: Path) -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ridgeline.b import X\n"
    text += "def f() -> None:\n    from . import c\n    import ridgeline.d\n"
    path = tmp_path / "m.py"
    path.write_text(text)
    known = {f"ridgeline.a{tail}": path for tail in ("", ".m", ".c")} | {f"ridgeline.{n}": path for n in "bd"}
    assert imported("ridgeline.a.m", path, known) == {"ridgeline.b", "ridgeline.a", "ridgeline.a.c", "ridgeline.d"}
