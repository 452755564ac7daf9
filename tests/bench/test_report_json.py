"""The documents that bench commands hand to the report: to JSON and back, and refusals that name the file and the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.bench.report_samples import whole_document

from ridgeline.bench.report_json import documents_of, read_documents, to_json
from ridgeline.errors import FileFormatError


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    made = whole_document()
    file = tmp_path / "r.json"
    file.write_text(json.dumps({"command": "its own affair", "report": to_json(made)}))
    (found,) = read_documents(file)
    assert found == made
    assert found.setup.machine["cores"] == 2 and isinstance(found.setup.machine["cores"], int)
    file.write_text(json.dumps([to_json(made), to_json(made)]))
    assert read_documents(file) == [made, made]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"title": 1}, "title is 1, must be text"),
        ({"x": 1}, "x is not known"),
        ({"version": 99}, "report of version 99, this program reads 1"),
        ({"curves": {}}, "curves is {}, must be a list"),
        ({"curves": [{"engine": "a"}]}, "curves[0].workload is missing"),
        ({"curves": [{"engine": "a", "workload": "b", "points": [{"load": "3"}]}]}, "curves[0].points[0].load is '3', must be a number"),
        ({"curves": [{"engine": "a", "workload": "b", "points": [{"load": True}]}]}, "curves[0].points[0].load is True"),
        ({"curves": [{"engine": "a", "workload": "b", "points": [], "label": "guess"}]}, "label is 'guess', must be one of measured"),
        ({"curves": [{"engine": "a", "workload": "b", "points": [], "load": "x"}]}, "load is 'x', must be one of concurrency, rate"),
        ({"setup": {"machine": {"a": [1]}}}, "setup.machine.a is [1]"),
        ({"tables": [{"title": "t", "columns": ["a", "b"], "rows": [[1, 2], [1]]}]}, "tables[0].rows[1] is [1], must be a list of 2"),
        ({"plots": [{"title": "", "x_label": "", "y_label": "", "lines": [{"name": "a", "points": [[1, 2, 3]]}]}]}, "a list of 2"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        documents_of({"kind": "serve", "title": "t"} | change, "f.json")
    assert str(caught.value).startswith("f.json: ") and said in str(caught.value)


def test_numbers_must_be_finite(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text('{"kind": "a", "title": "b", "curves": [{"engine": "e", "workload": "w", "points": [{"load": NaN}]}]}')
    with pytest.raises(FileFormatError, match="finite"):
        read_documents(file)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"report": 3}', "[" * 100_000, '{"report": []}', '{"kind": "a"}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "r.json"
    file.write_text(text)
    with pytest.raises(FileFormatError, match=r"not JSON|holds no report"):
        read_documents(file)
    with pytest.raises(FileFormatError, match=r"none\.json"):
        read_documents(tmp_path / "none.json")
