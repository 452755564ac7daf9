"""The shipped choice questions as tasks of lm-evaluation-harness, so that another client asks a server the same. Runs nothing.

A task is a YAML with the absolute path of a JSONL beside it: prompt, choices, and the number of the right one.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from ridgeline.bench.quality_tasks import Task
from ridgeline.errors import UserError

PREFIX = "rl_"  # of a task's name there, as it has tasks of its own
_YAML = """task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{answer}}}}"
doc_to_choice: "{{{{choices}}}}"
target_delimiter: ""
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""


def write_tasks(folder: Path, tasks: Sequence[Task]) -> tuple[str, ...]:
    """A JSONL and a YAML for each task of choices; their names there. Raises `UserError` for a folder that cannot be written."""
    names = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for task in tasks:
            if task.kind != "choice":
                continue
            data = folder.resolve() / f"{task.name}.jsonl"
            rows = ({"prompt": item.prompt, "choices": item.choices, "answer": 0} for item in task.items)
            data.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf8")
            names.append(f"{PREFIX}{task.name}")
            (folder / f"{names[-1]}.yaml").write_text(_YAML.format(name=names[-1], data=json.dumps(str(data))), "utf8")
    except OSError as wrong:
        text = f"{folder}: {wrong.strerror or wrong}"
        raise UserError(text, field="--lm-eval", value=str(folder), remedy="name a folder that can be written") from None
    return tuple(names)


def commands(model: str, folder: Path, names: Sequence[str], port: int = 8000) -> tuple[str, str]:
    """What serves the model, and what asks it."""
    arguments = f"model={model},base_url=http://localhost:{port}/v1/completions,num_concurrent=8,max_length=2048"
    ask = ["lm_eval", "run", "--model", "local-completions", "--tasks", ",".join(names), "--include_path", str(folder)]
    return shlex.join(["ridgeline", "serve", model, "--port", str(port)]), shlex.join([*ask, "--model_args", arguments])
