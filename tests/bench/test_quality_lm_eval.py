"""The shipped questions as tasks of lm-evaluation-harness: every choice question, the same answers, paths that hold from any folder."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from ridgeline.bench.quality_lm_eval import PREFIX, commands, write_tasks
from ridgeline.bench.quality_tasks import shipped_tasks
from ridgeline.cli import main
from ridgeline.errors import UserError

CHOICES = {t.name: t for t in shipped_tasks() if t.kind == "choice"}


def test_every_choice_question_is_written_as_it_is_asked_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = write_tasks(Path("a folder"), shipped_tasks())
    assert set(names) == {PREFIX + name for name in CHOICES} and len(names) == 4
    for name, task in CHOICES.items():
        yaml = Path("a folder", f"{PREFIX}{name}.yaml").read_text()
        (path,) = re.findall(r"test: (\".*\")$", yaml, re.M)
        rows = [json.loads(line) for line in Path(json.loads(path)).read_text().splitlines()]
        assert Path(json.loads(path)).is_absolute() and f"task: {PREFIX}{name}\n" in yaml and 'doc_to_choice: "{{choices}}"' in yaml
        assert [(r["prompt"], tuple(r["choices"]), r["answer"]) for r in rows] == [(i.prompt, i.choices, 0) for i in task.items]


def test_the_command_only_writes_and_tells_what_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No model is opened: its name is only passed on."""
    folder = tmp_path / "with space"
    assert main(["bench", "quality", "no such model", "--lm-eval", str(folder)]) == 0
    serve, ask = capsys.readouterr().out.splitlines()
    assert shlex.split(serve)[:3] == ["ridgeline", "serve", "no such model"]
    words = shlex.split(ask)
    assert words[words.index("--include_path") + 1] == str(folder) and "model=no such model," in words[-1]
    assert words[words.index("--tasks") + 1].split(",") == [PREFIX + name for name in CHOICES]
    assert (serve, ask) == commands("no such model", folder, [PREFIX + name for name in CHOICES])


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file: .*name a folder"):
        write_tasks(tmp_path / "file", shipped_tasks())
