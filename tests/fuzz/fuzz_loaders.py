"""A structure-aware fuzzer for the GGUF and safetensors loaders. Same seed, same mutants.

    python tests/fuzz/fuzz_loaders.py --mutants 100000

Half of the GGUF mutants keep magic and version, so that they get past the first check. Every accepted mutant is read to the end: each
metadata value is decoded and each tensor's bytes are touched. Only errors of the `UserError` family may come out; anything else is
reported with its seed and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.formats import gguf_writer as w  # noqa: E402

from ridgeline import encodings as enc  # noqa: E402
from ridgeline.errors import UserError  # noqa: E402
from ridgeline.formats.checkpoint import open_checkpoint  # noqa: E402
from ridgeline.formats.gguf_values import Array  # noqa: E402

INTERESTING = (
    0, 1, 2, 3, 7, 8, 31, 32, 33, 127, 128, 255, 256, 1 << 15, (1 << 16) - 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40,
    (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - 8, (1 << 64) - 32,
)  # fmt: skip
SIZES = {w.U8: 1, w.I8: 1, w.U16: 2, w.I16: 2, w.U32: 4, w.I32: 4, w.U64: 8, w.I64: 8}
SIGNED = (w.I8, w.I16, w.I32, w.I64)
SLOW_SECONDS = 2.0
MAX_MESSAGE = 2000
SHARD_NAMES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
FILE_NAMES = {
    "gguf": "m.gguf",
    "shard": "s-00001-of-00002.gguf",
    "safetensors": "single/model.safetensors",
    "index": "model.safetensors.index.json",
}


@dataclass
class Report:
    """What happened. `escaped` holds (seed, kind, error) of every error that is not for the user."""

    mutants: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    escaped: list[tuple[int, str, str]] = field(default_factory=list)
    kept_header: int = 0
    slowest_seconds: float = 0.0
    slowest_seed: int = -1
    rss_growth_bytes: int = 0


# Mutations of bytes


def flip_bits(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def set_integer(rng: random.Random, data: bytearray) -> None:
    """Write an interesting number over 1, 2, 4 or 8 bytes somewhere."""
    size = rng.choice((1, 2, 4, 8))
    at = rng.randrange(max(1, len(data) - size))
    data[at : at + size] = (rng.choice(INTERESTING) % (1 << 8 * size)).to_bytes(size, "little")


def truncate(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


def extend(rng: random.Random, data: bytearray) -> None:
    data += rng.randbytes(rng.randrange(1, 64))


def delete_piece(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.randrange(1, 33)]


def insert_piece(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.randbytes(rng.randrange(1, 33))


def copy_piece(rng: random.Random, data: bytearray) -> None:
    start, at = rng.randrange(len(data)), rng.randrange(len(data))
    data[at:at] = data[start : start + rng.randrange(1, 65)]


def splice_itself(rng: random.Random, data: bytearray) -> None:
    data += bytes(data)


BYTE_MUTATIONS: tuple[Callable[[random.Random, bytearray], None], ...] = (
    flip_bits, set_integer, set_integer, truncate, extend, delete_piece, insert_piece, copy_piece, splice_itself,
)  # fmt: skip


# Structures


def random_value(rng: random.Random, depth: int = 0) -> w.Typed:
    kind = rng.choice((w.U8, w.I8, w.U16, w.I16, w.U32, w.I32, w.FLOAT32, w.BOOL, w.STRING, w.ARRAY, w.U64, w.I64, w.FLOAT64))
    if kind == w.ARRAY:
        item = rng.choice((w.U8, w.U32, w.FLOAT32, w.BOOL, w.STRING, w.I64) if depth > 5 else (w.U8, w.U32, w.BOOL, w.STRING, w.ARRAY))
        count = rng.choice((0, 1, 2, 5))
        if item == w.ARRAY:
            return w.Typed(w.ARRAY, [_array(rng, depth + 1) for _ in range(count)], w.ARRAY)
        return w.Typed(w.ARRAY, [_scalar(rng, item) for _ in range(count)], item)
    return w.Typed(kind, _scalar(rng, kind))


def _array(rng: random.Random, depth: int) -> w.Typed:
    if depth < 6 and rng.random() < 0.5:
        return w.Typed(w.ARRAY, [_array(rng, depth + 1)], w.ARRAY)
    return w.Typed(w.ARRAY, [1, 2], w.U8)


def _scalar(rng: random.Random, kind: int) -> Any:
    if kind == w.STRING:
        return rng.choice((b"", b"llama", b"\xff\xfe", b"x" * 300, rng.randbytes(9)))
    if kind == w.BOOL:
        return rng.random() < 0.5
    if kind in (w.FLOAT32, w.FLOAT64):
        return rng.choice((0.0, 1.5, float("inf"), float("nan")))
    bits = 8 * SIZES[kind]
    value = rng.choice(INTERESTING) % (1 << bits)
    return value - (1 << bits) if kind in SIGNED and value >> (bits - 1) else value


def random_gguf(rng: random.Random, shard: bool) -> bytes:
    """A file that is right in form, though its numbers may lie; as the first of two shards if `shard`."""
    keys: dict[str, Any] = {"general.architecture": "llama"} if rng.random() < 0.9 else {}
    for n in range(rng.randrange(6)):
        keys[f"key.{n}"] = random_value(rng)
    if rng.random() < 0.2:
        keys["general.alignment"] = rng.choice((8, 16, 64, 0, 3, 1 << 31, "32", -1))
    if shard:
        keys.update({"split.no": w.Typed(w.U16, 0), "split.count": w.Typed(w.U16, 2)})
    if rng.random() < 0.1:
        keys.update({"split.no": rng.choice((0, 1)), "split.count": rng.choice((0, 1, 2, 9, -1, "x"))})
    tensors = []
    for n in range(rng.randrange(5)):
        encoding = rng.choice(enc.ENCODINGS)
        shape = (*(rng.choice((1, 2, 3)) for _ in range(rng.randrange(3))), encoding.block_size * rng.choice((1, 2)))
        spec = w.random_tensor(f"t{n}", shape, encoding, seed=n)
        if rng.random() < 0.15:
            spec = w.TensorSpec(rng.choice((spec.name, "t0", "", "n" * 300)), shape, rng.choice((4, 36, 250, 0, 12)), spec.data)
        if rng.random() < 0.1:
            spec = w.TensorSpec(spec.name, shape, spec.encoding, spec.data, offset=rng.choice(INTERESTING))
        tensors.append(spec)
    count = rng.choice(INTERESTING) if rng.random() < 0.05 else None
    return w.gguf_bytes(keys, tensors, w.Layout(version=rng.choice((2, 3, 3, 3)), n_tensors=count, big_endian=rng.random() < 0.03))


def random_safetensors(rng: random.Random) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}} if rng.random() < 0.5 else {}
    data = b""
    for n in range(rng.randrange(4)):
        shape = [rng.choice((1, 2, 3)) for _ in range(rng.randrange(4))]
        dtype, size = rng.choice((("F32", 4), ("F16", 2), ("BF16", 2)))
        nbytes = size
        for dim in shape:
            nbytes *= dim
        entry: dict[str, Any] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + nbytes]}
        if rng.random() < 0.2:
            entry[rng.choice(("dtype", "shape", "data_offsets", "more"))] = _odd_json(rng)
        if rng.random() < 0.1:
            entry["data_offsets"] = [rng.choice((0, len(data))), rng.choice(INTERESTING)]
        header[f"t{n}"] = entry
        data += rng.randbytes(nbytes)
    text = json.dumps(header).encode()
    if rng.random() < 0.1:
        text = text.replace(b'"t1"', b'"t0"').replace(b'"shape"', b'"dtype"', 1)
    length = rng.choice(INTERESTING) if rng.random() < 0.05 else len(text)
    return struct.pack("<Q", length) + text + data


def random_index(rng: random.Random) -> bytes:
    """An index over two good shards, with names that may lead anywhere."""
    places = (*SHARD_NAMES, *SHARD_NAMES, "../x.safetensors", "/etc/passwd", "model.bin", "none.safetensors", "link.safetensors", 7)
    weight_map: Any = {"a": SHARD_NAMES[0], "b": SHARD_NAMES[1]}
    if rng.random() < 0.5:
        weight_map[rng.choice(("a", "b", "c"))] = rng.choice(places)
    if rng.random() < 0.1:
        weight_map = _odd_json(rng)
    return json.dumps({"metadata": {"total_size": 48}, "weight_map": weight_map}).encode()


def _odd_json(rng: random.Random) -> Any:
    nested: Any = []
    for _ in range(rng.choice((1, 20, 500))):
        nested = [nested]
    return rng.choice((None, True, -1, 1.5, "F64", "", [], [1, -1], [0, 1 << 70], {}, {"a": 1}, nested))


def kind_of(seed: int) -> str:
    """Of 16 mutants 12 are GGUF (two of them first shards), 3 safetensors and 1 an index of shards."""
    return {3: "safetensors", 6: "safetensors", 11: "safetensors", 14: "index", 5: "shard", 8: "shard"}.get(seed % 16, "gguf")


def mutant(seed: int) -> tuple[bytes, bool]:
    """The bytes of one mutant, and whether magic and version were kept (every second one)."""
    kind = kind_of(seed)
    rng = random.Random(f"{seed}/{kind}")
    make = {"safetensors": random_safetensors, "index": random_index}.get(kind, lambda rng: random_gguf(rng, kind == "shard"))
    data = bytearray(make(rng))
    head, keep = bytes(data[:8]), seed % 2 == 0
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        if data:
            rng.choice(BYTE_MUTATIONS)(rng, data)
    if keep and kind in ("gguf", "shard"):
        data[:8] = head
    return bytes(data), keep


# Running


def consume(path: Path) -> None:
    """Open a mutant and read everything in it. The errors of lazily decoded values count like those of opening."""
    checkpoint = open_checkpoint(path)
    for value in checkpoint.metadata.values():
        _decode(value)
    for name in checkpoint.tensors:
        tensor = checkpoint.tensors[name]
        assert tensor.data.shape == (tensor.rows, tensor.encoding.row_bytes(tensor.columns))
        assert 0 <= int(tensor.data.sum()) <= 255 * tensor.nbytes
    checkpoint.release_all()


def _decode(value: object) -> None:
    if isinstance(value, Array):
        for item in value.tolist():
            _decode(item)


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def run(mutants: int, seed: int = 0, progress: Callable[[int], None] = lambda _: None) -> Report:
    """Run mutants `seed` .. `seed + mutants - 1`, three of four as GGUF."""
    report = Report()
    with tempfile.TemporaryDirectory(prefix="ridgeline-fuzz-") as name:
        folder = Path(name)
        _prepare(folder)
        warm = min(1000, mutants // 4)
        before = rss_bytes()
        for n in range(mutants):
            if n == warm:
                before = rss_bytes()
            _one(report, folder, seed + n)
            progress(n)
        report.rss_growth_bytes = rss_bytes() - before
    return report


def _prepare(folder: Path) -> None:
    """The good files beside which the mutants are put: configs, a second GGUF shard, two safetensors shards, a link that leads out."""
    (folder / "single").mkdir()
    for config in (folder / "config.json", folder / "single/config.json"):
        config.write_text('{"model_type": "llama"}')
    marks = {"split.no": w.Typed(w.U16, 1), "split.count": w.Typed(w.U16, 2)}
    w.write_gguf(folder / "s-00002-of-00002.gguf", marks, [w.random_tensor("second", (2, 32), enc.Q8_0)])
    for tensor, shard in zip("ab", SHARD_NAMES, strict=True):
        header = json.dumps({tensor: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
        (folder / shard).write_bytes(struct.pack("<Q", len(header)) + header + bytes(24))
    (folder / "link.safetensors").symlink_to("/etc/passwd")


def _one(report: Report, folder: Path, seed: int) -> None:
    kind = kind_of(seed)
    path = folder / FILE_NAMES[kind]
    data, kept = mutant(seed)
    path.write_bytes(data)
    report.mutants += 1
    report.kinds[kind] += 1
    report.kept_header += kept and kind in ("gguf", "shard")
    start = time.perf_counter()
    try:
        consume(path)
        report.accepted[kind] += 1
    except UserError as error:
        report.refused[type(error).__name__] += 1
        if not str(error).isprintable() or len(str(error)) > MAX_MESSAGE:
            report.escaped.append((seed, kind, f"a message that is not one plain line: {str(error)[:200]!r}"))
    except Exception as error:
        report.escaped.append((seed, kind, f"{type(error).__name__}: {error}"))
    seconds = time.perf_counter() - start
    if seconds > report.slowest_seconds:
        report.slowest_seconds, report.slowest_seed = seconds, seed
    path.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mutants", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    start = time.monotonic()
    report = run(arguments.mutants, arguments.seed)

    def counts(counter: Counter[str]) -> str:
        return f"{counter.total()} ({', '.join(f'{name} {count}' for name, count in counter.most_common())})"

    print(f"{counts(report.kinds)} mutants in {time.monotonic() - start:.0f} s, {report.kept_header} with magic and version kept")
    print(f"accepted {counts(report.accepted)}, refused {counts(report.refused)}, escaped {len(report.escaped)}")
    print(f"slowest {1000 * report.slowest_seconds:.1f} ms (seed {report.slowest_seed}), RSS growth {report.rss_growth_bytes / 1e6:.1f} MB")
    for seed, kind, error in report.escaped[:20]:
        print(f"  seed {seed} ({kind}): {error}")
    return 1 if report.escaped or report.slowest_seconds > SLOW_SECONDS else 0


if __name__ == "__main__":
    sys.exit(main())
