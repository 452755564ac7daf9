"""`ridgeline plan`: arithmetic before anything is bought. All formulas are in `planner/`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ridgeline.cli.output import note, print_json, size, table
from ridgeline.errors import UserError
from ridgeline.planner.catalog import find_model, models
from ridgeline.planner.explain import explain
from ridgeline.planner.facts import ModelFacts, Parts, from_graph
from ridgeline.planner.hardware import Device
from ridgeline.planner.local import local_facts
from ridgeline.planner.presets import Preset
from ridgeline.planner.question import (
    Question,
    check,
    device_of,
    document_of,
    goal_of,
    options_of,
    preset_of,
    search_document,
    setup_for,
    unchanged,
)
from ridgeline.planner.search import Goal, Option
from ridgeline.planner.setup import Setup, host_device
from ridgeline.planner.tables import folded

SHOWN = 110


def plan(args: Question, *, as_json: bool) -> None:
    """Raises `UserError` for an unknown name, a size that cannot be, or a combination that means nothing."""
    check(args)
    chosen = preset_of(args)
    goal = goal_of(args, chosen)
    setup = setup_of(args)
    facts = setup.facts
    if args.search or (args.device is None and not args.this_host):
        found = options_of(args, setup, goal, chosen)
        if as_json:
            print_json(search_document(facts, goal, found))
        else:
            _print_search(facts, goal, found, chosen)
        return
    document = document_of(args, setup)
    if args.explain:
        document["explain"] = [str(line) for line in explain(setup.deployment(), document["batch"], goal.context)]
    if as_json:
        print_json(document)
    else:
        _print_plan(document)


def setup_of(args: Question) -> Setup:
    """The model, the device (the first of the table when none is named) and everything that was said about them."""
    setup = setup_for(args, _asked_facts(args), _host(args) if args.this_host else device_of(args))
    if args.draft is not None:
        setup = setup.change(draft=_of_itself(args.model, setup.facts) if args.draft == "self" else model_facts(args.draft))
    if not args.this_host:
        return setup
    from ridgeline.backends.cpu import default_threads
    from ridgeline.backends.cpu.program import choose_isa
    from ridgeline.bench.calibrate import load_calibration

    return setup.change(calibration=load_calibration(args.threads or default_threads(), choose_isa(None)))


def model_facts(name: str) -> ModelFacts:
    """A file or folder, a short name of `pull` that is in the cache, or a row of the table."""
    path = _file(name)
    return find_model(name) if path is None else local_facts(path)


def _of_itself(name: str, facts: ModelFacts) -> ModelFacts:
    """The model as its own draft: no weights, and the KV of the layers that it guesses with; of all while nobody has chosen them."""
    from ridgeline.engine.self_draft import kept_for
    from ridgeline.formats.checkpoint import open_checkpoint
    from ridgeline.graph.rewrite import without
    from ridgeline.models import load_spec

    path, kept = _file(name), facts.kept
    if path is not None and path.suffix != ".json" and facts.stored is not None and facts.graph is not None:
        spec = load_spec(open_checkpoint(path))
        left = kept_for(spec)
        kept = kept if left is None else from_graph(without(spec.graph, left.sums), "file", "").kept
    return replace(facts, name="self", kept=kept, stored=Parts(0.0, 0.0, 0.0, 0.0))


def _asked_facts(args: Question) -> ModelFacts:
    path = _file(args.model)
    return find_model(args.model, args.kv_heads) if path is None else unchanged(local_facts(path), args)


def _file(name: str) -> Path | None:
    """The file or folder that a name means, None for a row of the table."""
    from ridgeline.formats.pull import find_cached

    if not name.strip():
        raise UserError("no model was named", field="MODEL", value=name, remedy="name one of `ridgeline models` or a file, or use --page")
    path = Path(name).expanduser()
    if path.exists() and (path.suffix in (".gguf", ".json", ".safetensors") or path.is_dir()):
        return path
    exact = any(folded(name) == folded(n) for n in models())
    return None if exact else find_cached(name)


def _host(args: Question) -> Device:
    from ridgeline.backends.cpu import default_threads
    from ridgeline.bench.probe import machine
    from ridgeline.engine.machine import memory_budget

    return host_device(machine(args.threads or default_threads()), memory_budget())


def _print_search(facts: ModelFacts, goal: Goal, found: Sequence[Option], chosen: Preset | None) -> None:
    if chosen is not None:
        print(f"pinned: {chosen.pins}; chased: {chosen.chases}; solved: {chosen.solves}")
    promise = [f"{n} <= {v * 1e3:g} ms" for n, v in (("ITL", goal.itl_s), ("TTFT", goal.ttft_s)) if v is not None]
    print(f"{facts.name}, {goal.context} tokens a sequence, {', '.join(promise) or 'no promise'}\n")
    header = ["device", "n", "weights", "batch", "ITL ms", "TTFT ms", "tok/s", "$/h", "$/M out", "max users"]
    rows = [
        [
            o.setup.device.name, o.setup.layout.devices, o.setup.form.name if o.setup.form else "stored", o.batch, f"{o.itl_s * 1e3:.2f}",
            f"{o.ttft_s * 1e3:.0f}", f"{o.tok_s:,.0f}", "-" if o.usd_per_hour is None else f"{o.usd_per_hour:.2f}",
            "-" if o.usd_per_mtok is None else f"{o.usd_per_mtok:.3f}", o.max_users,
        ]
        for o in found if o.passes
    ]  # fmt: skip
    print(table(rows, header) if rows else "nothing passes")
    dropped = [[o.setup.device.name, o.reason, o.fix] for o in found if not o.passes]
    if dropped:
        print("\ndropped\n" + table(dropped, ["device", "reason", "nearest fix"]))
    note(f"prices: lower figure of the table unless given; {found[0].setup.labels()['step_time_ms']}" if found else "no devices")


def _print_plan(p: Mapping[str, Any]) -> None:
    labels, memory = p["labels"], p["memory"]
    count = f"{p['devices']} x " if p["devices"] > 1 else ""
    print(f"{p['model']} on {count}{p['device']}: batch {p['batch']}, {p['context']} tokens a sequence\n")

    def line(name: str, value: str, key: str = "") -> None:
        print(f"{name:>22}  {value:<34}" + (f"  [{_cut(labels[key])}]" if key else ""))

    line("parameters", f"{p['params']:,}", "params")
    line("weights", f"{size(p['weights_bytes'])} ({p['weight_dtype']})", "weights_bytes")
    line("KV per token", f"{p['kv_bytes_per_token']:,} B = {p['kv_bytes_per_token'] / 1024:g} KiB", "kv_bytes_per_token")
    line("KV per sequence", f"{p['kv_bytes_per_sequence']:,} B ({size(p['kv_bytes_per_sequence'])})", "kv_bytes_per_sequence")
    words = {"weights": "weights", "kv": "KV", "activations": "activations", "overhead": "rest"}
    if memory["draft"]:
        words["draft"] = "draft"
    parts = " + ".join(f"{word} {size(memory[key])}" for key, word in words.items())
    verdict = "fits" if p["fits"] else "DOES NOT FIT"
    line("memory", f"{size(p['memory_bytes'])} of {size(memory['capacity'])}: {verdict}", "memory_bytes")
    print(f"{'':>22}  {parts}")
    line("users that fit", f"{p['max_users']:,}", "max_users")
    line("step (ITL)", f"{p['step_time_ms']:.2f} ms, {p['bound']} bound", "step_time_ms")
    line("throughput", f"{p['throughput_tok_s']:,.1f} tok/s" + _of(p["asymptote_tok_s"]), "throughput_tok_s")
    line("TTFT", f"{p['ttft_ms']:.1f} ms for {p['context']} tokens", "ttft_ms")
    line("ridge", f"batch {p['ridge_batch']:.0f} ({p['ridge_flop_per_byte']:.1f} FLOP/byte)", "ridge_batch")
    if p["usd_per_mtok"] is not None:
        high = f" to {p['usd_per_mtok_high']:.3f}" if p["usd_per_mtok_high"] not in (None, p["usd_per_mtok"]) else ""
        line("$ per million output", f"{p['usd_per_mtok']:.3f}{high}", "usd_per_mtok")
    for key in ("usd_per_mtok_by_kind", "load"):
        if p.get(key):
            print(f"{key.replace('_', ' '):>22}  " + ", ".join(f"{k.replace('_', ' ')} {_short(v)}" for k, v in p[key].items()))
    if "queue_ms" in labels:
        print(f"{'':>22}  [queue {labels['queue_ms']}]")
    if p["slo"]["reason"]:
        line("but", f"{p['slo']['reason']}; nearest fix: {p['slo']['fix']}")
    elif p["slo"]["itl_ms"] or p["slo"]["ttft_ms"]:
        line("promise", "kept")
    if p["curve"]:
        rows = [[c["batch"], f"{c['step_ms']:.2f}", f"{c['tok_s']:,.0f}", _mark(c)] for c in p["curve"]]
        print("\n" + table(rows, ["batch", "ms a step", "tok/s", ""]))
    if p.get("what_if"):
        print("\nat full use, device seconds a request and $ per million output tokens")
        rows = [[w["change"], f"{w['device_s']:.4f}", _money(w["usd_per_mtok"]), f"{w['saved']:.0%}"] for w in p["what_if"]]
        print(table(rows, ["change", "seconds", "$/M", "saved"]))
    for text in p["notes"]:
        print(f"note: {text}")
    for text in p.get("explain", ()):
        print(f"  {text}")


def _cut(label: str) -> str:
    """A label for one line; --json has the whole."""
    return label if len(label) <= SHOWN else label[: SHOWN - 3] + "..."


def _money(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _mark(row: Mapping[str, Any]) -> str:
    return "<- best" if row["best"] else "" if row["within"] else "over the promise"


def _of(value: float | None) -> str:
    return "" if value is None else f" (asymptote {value:,.1f})"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
