"""A plan's document as lines for people: a name, a value with its unit, and where the number comes from. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Line = dict[str, str]


def gigabytes(count: float) -> str:
    """Decimal, as datasheets have it: 14.48 GB, 131 kB."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= size:
            return f"{count / size:,.2f} {unit}" if count < 100 * size else f"{count / size:,.0f} {unit}"
    return f"{count:,.0f} B"


def dollars(value: float | None) -> str:
    return "no price" if value is None else f"${value:,.3f}" if value < 100 else f"${value:,.0f}"


def lines(p: Mapping[str, Any]) -> list[Line]:
    """In the order in which a plan is read. Each has key, name, value, label (words on its source) and kind (the label's first word)."""
    labels = p["labels"]
    found = []
    for key, name, value in _values(p):
        kind, label = _source(labels.get(key, labels["step_time_ms"]))
        found.append({"key": key, "name": name, "value": value, "label": label, "kind": kind})
    return found


def _source(label: str) -> tuple[str, str]:
    """(first word, the rest); a sum of exact and assumed parts is called both."""
    first, _, rest = label.partition(":")
    if " " in first and first != "not given":
        return ("exact + assumed" if "assumed" in label else first.split()[0]), label
    return first, rest.strip()


def _values(p: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield "params", "Parameters", f"{p['params']:,}"
    kind = p["weight_dtype"] if p["weight_dtype"] == "as stored" else f"in {p['weight_dtype']}"
    yield "weights_bytes", "Weights", f"{gigabytes(p['weights_bytes'])} {kind}"
    per = p["kv_bytes_per_token"]
    yield "kv_bytes_per_token", "KV per token", f"{per:,} B = {per / 1024:,.4g} KiB in {p['kv_dtype']}"
    yield "kv_bytes_per_sequence", f"KV of {p['context']:,} tokens", gigabytes(p["kv_bytes_per_sequence"])
    yield "memory_bytes", f"Memory for {p['batch']:,} at once", f"{gigabytes(p['memory_bytes'])} of {gigabytes(p['memory']['capacity'])}"
    yield "max_users", "Users that fit", f"{p['max_users']:,}"
    if p["max_context"]:
        yield "max_users", f"Longest context of {p['batch']:,} users", f"{p['max_context']:,} tokens"
    yield "step_time_ms", "Time per token (ITL)", f"{p['step_time_ms']:,.2f} ms, {p['bound']} bound"
    yield "throughput_tok_s", "Throughput", f"{p['throughput_tok_s']:,.1f} output tok/s"
    yield "throughput_tok_s", "Requests", f"{p['requests_s']:,.2f} per second"
    if p["asymptote_tok_s"] is not None:
        yield "throughput_tok_s", "No batch makes more than", f"{p['asymptote_tok_s']:,.1f} tok/s"
    yield "ttft_ms", f"TTFT of {p['context']:,} tokens", f"{p['ttft_ms']:,.1f} ms"
    yield "ridge_batch", "Ridge", f"batch {p['ridge_batch']:,.0f} ({p['ridge_flop_per_byte']:,.1f} FLOP/byte)"
    usd, high = p["usd_per_mtok"], p["usd_per_mtok_high"]
    band = f" to {dollars(high)}" if high is not None and high != usd else ""
    yield "usd_per_mtok", "Per million output tokens", dollars(usd) + band
    yield from _load(p)


def _load(p: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    kinds, load = p.get("usd_per_mtok_by_kind"), p.get("load")
    if kinds:
        shown = ", ".join(f"{k} {dollars(v)}" for k, v in kinds.items())
        yield "usd_per_mtok", "Per million tokens, by device time", shown
    if load:
        state = "" if load["stable"] else ", and the queue grows without end"
        yield "step_time_ms", "Sequences in flight", f"{load['in_flight_per_replica']:,.1f} a replica"
        yield "step_time_ms", "Time per token under load", f"{load['itl_ms']:,.2f} ms"
        if load["queue_ms"] is not None:
            yield "queue_ms", "Wait in the queue", f"{load['queue_ms']:,.1f} ms: first token after {load['ttft_ms']:,.1f} ms"
        yield "step_time_ms", "Devices busy", f"{load['utilization']:.0%} of {load['max_rate_s']:,.2f} requests/s{state}"


def verdict(p: Mapping[str, Any]) -> str:
    """The answer in one sentence."""
    memory, slo = p["memory"], p["slo"]
    where = f"{p['devices']} x {p['device']}" if p["devices"] > 1 else p["device"]
    if not p["fits"]:
        over = gigabytes(p["memory_bytes"] - memory["capacity"])
        return f"Does not fit: {p['batch']:,} at once with {p['context']:,} tokens each need {over} more than {where} has."
    price = "" if p["usd_per_mtok"] is None else f", {dollars(p['usd_per_mtok'])} per million output tokens"
    replicas = p["parallel"]["replicas"]
    each = f" on each of {replicas:,} replicas" if replicas > 1 else ""
    found = f"Fits on {where}: up to {p['max_users']:,} users; {p['batch']:,} at once{each} get a token every {p['step_time_ms']:,.2f} ms, "
    found += f"{p['throughput_tok_s']:,.0f} tok/s in all{price}."
    return found + (f" But {slo['reason']}; nearest fix: {slo['fix']}." if slo["reason"] else "")
