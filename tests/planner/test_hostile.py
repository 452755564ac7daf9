"""The planning commands against people who mean no good: one clear line, exit 2, never a traceback and never a number that is none."""

from __future__ import annotations

import json

import pytest

from ridgeline.cli import main

PLAN, SIMULATE = ["plan", "Llama-3.1-8B", "--device", "H200"], ["simulate", "Llama-3.1-8B", "--device", "H200"]


@pytest.mark.parametrize(
    "args, words",
    [
        (["plan", "nosuch"], "'nosuch' is not known"),
        (["plan", "Llama", "--device", "H200"], "may be Llama-2-7B"),
        (["plan"], "no model"),
        (["plan", "Llama-3.1-8B", "--device", "H100"], "may be H100 SXM 80GB"),
        (["plan", "/etc/hostname", "--device", "H200"], "not known"),
        ([*PLAN, "--context", "0"], "--context is 0"),
        ([*PLAN, "--context", "-5"], "--context is -5"),
        ([*PLAN, "--context", "nan"], "--context is 'nan'"),
        ([*PLAN, "--context", "9" * 20], "must be from 1 to"),
        ([*PLAN, "--rate", "nan"], "--rate is 'nan'"),
        ([*PLAN, "--rate", "1e30"], "is reckoned"),
        ([*PLAN, "--price", "nan"], "--price"),
        ([*PLAN, "--weight-dtype", "int3"], "'int3' is not known"),
        ([*PLAN, "--kv-dtype", "bf17"], "'bf17' is not known"),
        ([*PLAN, "--weights-bytes", "0"], "above 0"),
        ([*PLAN, "--bandwidth", "0"], "--bandwidth"),
        ([*PLAN, "--memory", "nan"], "--memory"),
        ([*PLAN, "--overhead-bytes", "100%"], "below 100%"),
        ([*PLAN, "--tp", "3"], "must divide evenly"),
        ([*PLAN, "--tp", "0"], "--tp is 0"),
        ([*PLAN, "--pp", "64"], "has 32 layers"),
        ([*PLAN, "--threads", "0"], "--threads is 0"),
        ([*PLAN, "--draft", ""], "no model"),
        ([*PLAN, "--itl", "0"], "--itl"),
        ([*PLAN, "--utilization", "2"], "--utilization"),
        ([*PLAN, "--kv-heads", "7"], "multiple"),
        ([*SIMULATE, "--seed", "-1"], "--seed is -1"),
        ([*SIMULATE, "--prefix", "-1"], "--prefix is -1"),
        ([*SIMULATE, "--kv-blocks", "0"], "--kv-blocks is 0"),
        ([*SIMULATE, "--max-num-seqs", "0"], "--max-num-seqs is 0"),
        ([*SIMULATE, "--spread", "nan"], "--spread is nan"),
        ([*SIMULATE, "--replicas", "99999"], "--replicas is 99999"),
        ([*SIMULATE, "--trace-in", "/nowhere"], "No such file"),
        ([*SIMULATE, "--html", "/nowhere/x.html"], "no such folder"),
        (["simulate", "Llama-3.1-8B"], "nothing to simulate on"),
        (["calibrate", "--threads", "0"], "--threads is 0"),
        (["calibrate", "--seconds", "61"], "--seconds is 61"),
        (["hardware", "zzz"], "'zzz' is not known"),
        (["models", "zzz"], "not known"),
    ],
)
def test_one_line_and_exit_2(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    out, error = capsys.readouterr()
    assert words in error and error.count("\n") == 1 and error.startswith("error: ") and not out


def test_what_is_huge_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    """A billion sequences of a billion tokens do not fit, and say so soon."""
    assert main([*PLAN, "--batch", "1073741824", "--context", "1073741824", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not found["fits"] and found["usd_per_mtok"] is None and found["ttft_ms"] > 0
