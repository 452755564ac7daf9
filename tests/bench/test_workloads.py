"""Workloads: times, lengths, what is shared, and trace files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ridgeline.bench.workloads import Agents, ClosedLoop, Lengths, Workload, bursts, poisson, trace_file
from ridgeline.errors import FileFormatError, UserError


def test_poisson() -> None:
    """Row 95: the rate it says, gaps that vary like an exponential's, the same for the same seed."""
    jobs = poisson(4000, 8.0, Lengths(100, 50, 0.5), seed=1).start()
    gaps = np.diff([0.0, *(j.arrival_s for j in jobs)])
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.05) and gaps.std() == pytest.approx(1 / 8, rel=0.08)
    lengths = [len(j.prompt) for j in jobs]
    assert min(lengths) >= 50 and max(lengths) <= 150 and np.mean(lengths) == pytest.approx(100, rel=0.02)
    again = poisson(4000, 8.0, Lengths(100, 50, 0.5), seed=1).start()
    assert all(np.array_equal(a.prompt, b.prompt) and a.arrival_s == b.arrival_s for a, b in zip(jobs, again, strict=True))
    assert jobs[0].arrival_s != poisson(1, 8.0, Lengths(100, 50), seed=2).start()[0].arrival_s


def test_prompts_share_only_what_was_asked() -> None:
    jobs = poisson(50, 1.0, Lengths(64, 4), prefix=32).start()
    first = jobs[0].prompt
    assert all(np.array_equal(j.prompt[:32], first[:32]) and j.prompt[32] != first[32] for j in jobs[1:])
    assert len({int(j.prompt[0]) for j in poisson(50, 1.0, Lengths(64, 4)).start()}) == 50
    long = poisson(1, 1.0, Lengths(1 << 19, 1)).start()[0].prompt
    assert len(long) == 1 << 19 and long.dtype == np.int32


def test_bursts() -> None:
    jobs = bursts(40, 10.0, 8, Lengths(10, 2)).start()
    assert [len({j.arrival_s for j in jobs[i : i + 8]}) for i in range(0, 40, 8)] == [1] * 5
    assert len({j.arrival_s for j in jobs}) == 5


def drain(workload: Workload) -> list[str]:
    """Serve one after another; ids in order."""
    queue, done = list(workload.start()), []
    while queue:
        job = queue.pop(0)
        done.append(job.id)
        following = workload.after(job, job.arrival_s + 2.0, np.arange(job.output, dtype=np.int32))
        if following is not None:
            assert following.arrival_s >= job.arrival_s + 2.0
            queue.append(following)
    return done


def test_closed_loop() -> None:
    loop = ClosedLoop(10, 4, Lengths(8, 2))
    assert len(loop.start()) == 4
    assert len(drain(ClosedLoop(10, 4, Lengths(8, 2)))) == 10


def test_agents() -> None:
    """Each turn's prompt is the last one, its answer, and something new; sessions of a role share its system prompt."""
    agents = Agents(6, 3, 2.0, Lengths(20, 5), system=64, roles=2, think_s=0.5)
    first = agents.start()
    assert np.array_equal(first[0].prompt[:64], first[2].prompt[:64]) and not np.array_equal(first[0].prompt[:64], first[1].prompt[:64])
    answer = np.arange(5, dtype=np.int32)
    second = agents.after(first[0], 7.0, answer)
    assert second is not None and second.arrival_s == 7.5 and (second.id, second.turn) == ("s0.1", 1)
    said = np.concatenate((first[0].prompt, answer))
    assert np.array_equal(second.prompt[: len(said)], said) and len(second.prompt) == len(said) + 20
    assert len(drain(Agents(6, 3, 2.0, Lengths(20, 5)))) == 18


def test_trace_files(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"arrival": 2, "prompt_len": 8, "output_len": 3}\n\n'
        '{"arrival": 0.5, "prompt_len": 10, "output_len": 1, "prefix_id": "a", "prefix_len": 6}\n'
        '{"arrival": 1, "prompt_len": 9, "output_len": 1, "prefix_id": "a", "prefix_len": 6}\n'
        '{"arrival": 1, "prompt_len": 9, "output_len": 1, "prefix_id": "b"}\n'
    )
    jobs = trace_file(path).start()
    assert [(j.id, j.arrival_s, len(j.prompt), j.output) for j in jobs] == [
        ("t3", 0.5, 10, 1),
        ("t4", 1.0, 9, 1),
        ("t5", 1.0, 9, 1),
        ("t1", 2.0, 8, 3),
    ]
    assert np.array_equal(jobs[0].prompt[:6], jobs[1].prompt[:6]) and jobs[0].prompt[6] != jobs[1].prompt[6]


@pytest.mark.parametrize(
    "line, words",
    [
        ("{", "line 1: not a JSON object"), ("[]", "not a JSON object"), ('{"prompt_len": 3, "output_len": 1}', "arrival is None"),
        ('{"arrival": -1, "prompt_len": 3, "output_len": 1}', "arrival is -1"),
        ('{"arrival": true, "prompt_len": 3, "output_len": 1}', "arrival is True"),
        ('{"arrival": 0, "prompt_len": 0, "output_len": 1}', "prompt_len is 0"), ('{"arrival": 0, "prompt_len": 3}', "output_len is None"),
        ('{"arrival": 0, "prompt_len": 3, "output_len": 1e99}', "output_len is 1e+99"),
        ('{"arrival": NaN, "prompt_len": 3, "output_len": 1}', "arrival is nan"),
        ("", "no request in it"),
    ],
)  # fmt: skip
def test_traces_that_are_refused(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(line)
    with pytest.raises(FileFormatError) as error:
        trace_file(path)
    assert words in str(error.value) and "t.jsonl" in str(error.value)


def test_sizes_that_cannot_be() -> None:
    for bad in (lambda: Lengths(0, 1), lambda: Lengths(1, 0), lambda: Lengths(1, 1, 1.0), lambda: poisson(0, 1.0, Lengths()),
                lambda: poisson(1, 0.0, Lengths()), lambda: ClosedLoop(1, 0, Lengths()), lambda: Agents(1, 0, 1.0, Lengths()),
                lambda: bursts(4, 1.0, 0, Lengths())):  # fmt: skip
        with pytest.raises(UserError):
            bad()
