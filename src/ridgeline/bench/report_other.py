"""Results that hold no report of their own: predictions and peers as they are kept in files, and `bench engine`. Makes documents of them.

Knows which keys those files have; trusts none of them: what does not fit is left to the reader of documents, which names file and key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

PREDICTED = {"tpot_ms": "TPOT mean ms", "throughput_tok_s": "throughput tok/s", "ttft_p95_ms": "TTFT p95 ms"}  # keys of `bench predict`
Plain = Mapping[str, Any]


def other(found: Any) -> dict[str, Any] | None:
    """A report's document, as plain values, of a parsed file without one; None for files of any other kind."""
    if not isinstance(found, dict) or "report" in found:
        return None
    makers: tuple[tuple[bool, Callable[[Plain], dict[str, Any]]], ...] = (
        (isinstance(found.get("models"), dict), _predict),
        (found.get("kind") == "bench peers" and isinstance(found.get("rows"), list), _peers),
        ({"isa", "threads", "decode", "overhead"} <= set(found), _engine),
    )
    try:
        return next((make(found) for fits, make in makers if fits), None)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


# --- bench predict ------------------------------------------------------------------------------------------------------------------


def _predict(found: Plain) -> dict[str, Any]:
    """Cells in the order of the file; a cell counts as the table of `bench predict` counts it: the median of its undisturbed runs."""
    from ridgeline.bench.predict import counted

    cells, machine, notes = [], {}, []
    for name, model in found["models"].items():
        machine = {"host": model["host"], "threads": model["threads"], "kernels": model["isa"]}
        label = f"fitted: calibrated {model['calibrated'][:16].replace('T', ' ')}"
        measured = [c for c in model["cells"] if c["measured"]]
        for cell in measured:
            taken, asked = counted(cell), cell["cell"]
            load = f"{asked['users']} at once" if asked["users"] else f"Poisson {asked['rate']:.3g}/s"
            for key, metric in PREDICTED.items():
                value = median(m[key] for m in taken)
                what = f"{name}, prompts of {asked['prompt']}, {load}"
                steal = median(m["steal"] for m in taken)
                guess = cell["predicted"][key]
                cells.append({"what": what, "metric": metric, "predicted": guess, "measured": value, "steal": steal, "label": label})
        if len(measured) < len(model["cells"]):
            notes.append(f"{name}: {len(model['cells']) - len(measured)} of {len(model['cells'])} predicted cells were not measured")
    setup = {"machine": machine, "date": _date(found)}
    return {"kind": "bench predict", "title": ", ".join(found["models"]) + ": predicted, then measured", "setup": setup,
            "predictions": cells, "notes": notes}  # fmt: skip


def _date(found: Plain) -> str:
    """Of the last measurement."""
    return max((m["at"] for of in found["models"].values() for c in of["cells"] for m in c["measured"]), default="")


# --- bench peers --------------------------------------------------------------------------------------------------------------------


def comparisons(rows: list[Plain]) -> list[dict[str, Any]]:
    """Rows of `bench peers` with a ratio, as comparisons. A row without an interval is never called significant."""
    found = []
    for r in rows:
        if r["ratio"] is None:
            continue
        low, high = r["low"], r["high"]
        significant = low is not None and high is not None and not low <= 1 <= high and not r["disturbed"]
        where = f"{r['model']}, {r['measure'].rpartition(': ')[0]}" if ": " in r["measure"] else r["model"]
        found.append({
            "a": "ridgeline", "b": r["peer"], "metric": r["measure"].rpartition(": ")[2], "ratio": r["ratio"], "low": low, "high": high,
            "sentence": _disturbed(r), "pairs": int(r["note"].split()[0]) if r["note"].endswith(" rounds") else 0,
            "significant": significant, "higher_is_better": r["better"] == "higher", "where": where, "a_value": r["ours"],
            "b_value": r["theirs"],
        })  # fmt: skip
    return found


def _disturbed(r: Plain) -> str:
    return f"not to be relied on ({r['ratio']:.2f}x): others took up to {r['disturbed']:.0%} of the CPUs" if r["disturbed"] else ""


def _peers(found: Plain) -> dict[str, Any]:
    rows = found["rows"]
    commands = list(dict.fromkeys(c for r in rows for c in (r["our_command"], r["peer_command"]) if c))
    missing = [r["note"] or f"{r['peer']}: no result for {r['measure']}" for r in rows if r["ratio"] is None]
    setup = {"commands": commands} | {k: found[k] for k in ("date", "machine", "versions") if k in found}
    return {"kind": "bench peers", "title": "Peers on this machine", "setup": setup, "comparisons": comparisons(rows), "notes": missing}


# --- bench engine -------------------------------------------------------------------------------------------------------------------


def _engine(found: Plain) -> dict[str, Any]:
    """One table, a row a fact, and what `branch` was predicted to take."""
    rows = [row for name, make in ENGINE.items() if found.get(name) for row in make(found[name])]
    branch, decode = found.get("branch"), found.get("decode") or {}
    predictions = [] if not branch else [{
        "what": f"{found['model']}, {branch['branches']} branches of {branch['shared']} shared tokens", "metric": "time of all branches, s",
        "predicted": branch["predicted_s"], "measured": branch["seconds"], "label": "fitted: rates measured on this host",
    }]  # fmt: skip
    peers = [
        {"a": "ridgeline", "b": "llama.cpp", "metric": "decode tok/s", "ratio": p["ratio"], "low": None, "high": None, "sentence": "",
         "where": f"{p['file']}, {decode['seqs']} sequences at once", "a_value": decode["decode_tok_s"], "b_value": p["decode_tok_s"]}
        for p in decode.get("peers", ())
    ]  # fmt: skip
    setup = {"machine": {"threads": found["threads"], "kernels": found["isa"]}, "settings": {"model": found["model"]},
             "commands": [p["command"] for p in decode.get("peers", ())]}  # fmt: skip
    names = [name for name in ENGINE if found.get(name)]
    title = f"{found['model']}: {', '.join(names)}"
    table = {"title": title, "columns": ["scenario", "what", "value", "unit"], "rows": rows,
             "note": f"Medians of {found['repeat']} runs, without HTTP."}  # fmt: skip
    return {"kind": "bench engine", "title": title, "setup": setup, "tables": [table] if rows else [],
            "predictions": predictions, "comparisons": peers}  # fmt: skip


def _decode(d: Plain) -> Iterator[list[Any]]:
    yield ["decode", f"{d['seqs']} sequences at once", d["decode_tok_s"], "tok/s"]
    yield ["decode", f"with their prompts of {d['prompt']}", d["total_tok_s"], "tok/s"]


def _branch(b: Plain) -> Iterator[list[Any]]:
    what = f"{b['branches']} branches of {b['shared']} shared + {b['own']} own tokens, {b['gen']} each"
    yield ["branch", what, b["seconds"], "s"]
    yield ["branch", "the same without reuse of the prefix", b["off_seconds"], "s"]
    yield ["branch", "reuse gains", b["speedup"], "x"]


def _arrival(a: Plain) -> Iterator[list[Any]]:
    yield ["arrival", f"gap between tokens of {a['running']} answers, quiet", 1e3 * a["steady_itl_s"], "ms"]
    yield ["arrival", f"p99 of it while a prompt of {a['prompt']} is read in chunks", 1e3 * a["p99_itl_s"], "ms"]
    yield ["arrival", "p99 of it when the prompt is read whole", 1e3 * a["whole_p99_itl_s"], "ms"]
    yield ["arrival", "that prompt's TTFT over its TTFT alone", a["ttft_ratio"], "x"]


def _overhead(o: Plain) -> Iterator[list[Any]]:
    yield ["overhead", "outside native code, a step of 1 sequence", 1e6 * o["batch1_glue_s"], "us"]
    yield ["overhead", f"outside native code, a step of {o['batch_n']} sequences", 1e6 * o["batch_n_glue_s"], "us"]
    yield ["overhead", f"prefix match of {o['match_prompt']} tokens", 1e6 * o["match_s"], "us"]


def _rest(name: str) -> Callable[[Plain], Iterator[list[Any]]]:
    """Facts that are plain values, by their own names."""

    def rows(found: Plain) -> Iterator[list[Any]]:
        for key, value in found.items():
            if isinstance(value, str | int | float):
                yield [name, key.replace("_", " "), value, ""]

    return rows


ENGINE: Mapping[str, Callable[[Plain], Iterator[list[Any]]]] = {
    "decode": _decode, "batching": _rest("batching"), "ragged": _rest("ragged"), "branch": _branch, "arrival": _arrival,
    "overhead": _overhead, "reuse": _rest("reuse"), "samples": _rest("samples"), "overload": _rest("overload"),
    "session": _rest("session"), "ablation": _rest("ablation"),
}  # fmt: skip
