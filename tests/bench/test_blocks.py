"""`ridgeline blocks`: hits of tree and hash, block tables, copies, evictions (acceptance rows 100, 103, 104, 109-111)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.cli.tiny_gguf import tiny_gguf

from ridgeline.bench.blocks import BlocksOptions, BlocksReport, Row, render, run, with_letter_changed
from ridgeline.errors import UserError

STEM = list(range(100, 122))


def spell(ids: object) -> str:
    return " ".join(map(str, ids))  # type: ignore[call-overload]


def rows(report: BlocksReport, prompt: int) -> dict[str, Row]:
    return {row.policy: row for row in report.rows[prompt]}


@pytest.mark.parametrize("at", range(len(STEM)))
@pytest.mark.parametrize("size", [1, 4, 16])
def test_one_changed_token_hits_what_is_before_it(at: int, size: int) -> None:
    """Row 110: the tree to the token, the hash rounded down to a block; not zero."""
    changed = [*STEM[:at], 7, *STEM[at + 1 :]]
    found = rows(run([STEM, changed], spell, BlocksOptions(size)), 1)
    assert (found["radix"].hit, found["hash"].hit) == (at, at // size * size)
    assert found["radix"].differs_at == at and found["radix"].copies == int(at % size > 0)
    shared = found["radix"].tables[0][: at // size]
    assert shared == run([STEM], spell, BlocksOptions(size)).rows[0][0].tables[0][: at // size]


def test_the_talks_prefix_of_1656_tokens() -> None:
    """Test vector 7: at blocks of 16, 103 whole blocks: hashes find 1,648 tokens; the tree finds all 1,656."""
    stem = list(range(1656))
    found = rows(run([[*stem, 2000], [*stem, 2001]], spell, BlocksOptions(16)), 1)
    assert (found["radix"].hit, found["hash"].hit) == (1656, 1648) and 1648 == 103 * 16


def test_policies_on_the_same_requests_differ_by_block_rounding() -> None:
    rng = np.random.default_rng(1)
    prompts = [[*STEM[: int(rng.integers(1, len(STEM)))], *rng.integers(0, 50, 9).tolist()] for _ in range(12)]
    report = run(prompts, spell, BlocksOptions(4))
    hits = [(row["radix"].hit, row["hash"].hit) for row in (rows(report, i) for i in range(12))]
    assert all(tree - 4 < by_hash <= tree for tree, by_hash in hits) and any(a > b for a, b in hits) and sum(b for _, b in hits) > 0


@pytest.mark.parametrize(("n", "gen", "size"), [(4, 6, 4), (8, 1, 16), (3, 0, 4), (4, 20, 5)])
def test_samples_store_the_prompt_once(n: int, gen: int, size: int) -> None:
    """Rows 100, 103, 104: whole prompt blocks are everybody's, the last is copied for each but one, waste is under a block each."""
    for row in run([STEM], spell, BlocksOptions(size, n=n, gen=gen)).rows[0]:
        whole, rest = divmod(len(STEM), size)
        own = -(-(len(STEM) + gen) // size) - whole if gen else int(rest > 0)
        assert len({table[:whole] for table in row.tables}) == 1
        assert row.blocks_used == whole + (n * own if gen else own) and row.copies == (n - 1 if rest and gen else 0)
        assert all(0 <= empty < size for empty in row.empty_slots) and row.blocks_apart == n * -(-(len(STEM) + gen) // size)
        if gen:
            ends = [block for table in row.tables for block in table[whole:]]
            assert len(set(ends)) == len(ends)


def test_the_tree_splits_and_loses_least_recently_used_leaves() -> None:
    """Row 111: single-child chains are one node, a split makes two, eviction takes the leaf that was used longest ago."""
    a, b = list(range(8)), [*range(4), 20, 21, 22, 23]
    report = run([a, b, list(range(50, 66))], spell, BlocksOptions(4, blocks=6, policies=("radix",)))
    first, second, third = (row[0].tree for row in report.rows)
    assert [(leaf.depth, leaf.start, leaf.tokens) for leaf in first] == [(0, 0, 8)]
    assert [(leaf.depth, leaf.start, leaf.tokens) for leaf in second] == [(0, 0, 4), (1, 4, 4), (1, 4, 4)]
    told = {leaf.text: leaf.blocks for leaf in third}
    assert report.rows[2][0].evicted == 1 and told["4 5 6 7"] == (-1,)
    assert -1 not in told["20 21 22 23"] + told["0 1 2 3"]
    assert "tree:" in render(report, tree=True) and "tree:" not in render(report, tree=False)


def test_what_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="--blocks"):
        run([STEM], spell, BlocksOptions(4, blocks=2))
    with pytest.raises(UserError, match="no tokens"):
        run([[]], spell, BlocksOptions())
    for given in ({"n": 0}, {"gen": -1}, {"policies": ("lru",)}, {"block_size": 0}):
        with pytest.raises(UserError, match="must be"):
            BlocksOptions(**given)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="--change is 3"):
        with_letter_changed("abc", 3)
    assert [with_letter_changed(t, 1) for t in ("abc", "axc", "aBc")] == ["axc", "ayc", "aXc"]


def test_the_command_shows_a_changed_letter(tmp_path: Path) -> None:
    model = tiny_gguf(tmp_path / "tiny.gguf")
    command = [
        sys.executable,
        "-m",
        "ridgeline",
        "blocks",
        str(model),
        "Four score and seven",
        "--change",
        "11",
        "--block-size",
        "4",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    told = json.loads(done.stdout)["rows"][1]
    assert {row["policy"]: row["hit"] for row in told} == {"radix": 11, "hash": 8}
