"""Models of a hub, through the real `huggingface_hub` client against a local server that speaks the hub's API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.formats import gguf_writer as w
from tests.formats.hub_server import REVISION, Hub, serve
from tests.formats.test_gguf_split import META, SHARDS
from tests.formats.test_safetensors import CONFIG, VALUES, tensors_bytes

from ridgeline.errors import UserError
from ridgeline.formats import pull, pull_hub
from ridgeline.formats.checkpoint import open_checkpoint

pytest.importorskip("huggingface_hub")
PLAIN = w.gguf_bytes(META, SHARDS[0])
MARKS = [{"split.no": w.Typed(w.U16, n), "split.count": w.Typed(w.U16, 3), "split.tensors.count": w.Typed(w.I32, 3)} for n in range(3)]
INDEX = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
REPOS = {
    "org/single": {
        "config.json": json.dumps(CONFIG).encode(), "tokenizer.json": b"{}", "model.safetensors": tensors_bytes({"w": VALUES}),
        "pytorch_model.bin": b"pickle", "modeling_evil.py": b"evil", "README.md": b"",
    },
    "org/sharded": {
        "config.json": json.dumps(CONFIG).encode(), "model.safetensors.index.json": json.dumps(INDEX).encode(),
        "model-00001-of-00002.safetensors": tensors_bytes({"a": VALUES}), "model-00002-of-00002.safetensors": tensors_bytes({"b": VALUES}),
        "consolidated.safetensors": b"unused",
    },
    "org/one-gguf": {"m.gguf": PLAIN, "mmproj-m.gguf": b"companion", "README.md": b""},
    "org/many-gguf": {"m-Q4_K_M.gguf": PLAIN, "m-Q8_0.gguf": PLAIN + b"", "deep/m-F16.gguf": PLAIN},
    "org/split-gguf": {
        f"s/m-{n + 1:05d}-of-00003.gguf": w.gguf_bytes({**(META if n == 0 else {}), **MARKS[n]}, SHARDS[n]) for n in range(3)
    },
    "org/pickle": {"config.json": b"{}", "pytorch_model.bin": b"pickle"},
    "org/bad-index": {"config.json": b"{}", "model.safetensors.index.json": b"[]"},
    "org/short-index": {"config.json": b"{}", "model.safetensors.index.json": json.dumps(INDEX).encode()},
    "org/escape": {"config.json": b"{}", "model.safetensors.index.json": b'{"weight_map": {"a": "../../etc/passwd"}}'},
    "org/large": {"m.gguf": w.gguf_bytes(META, [w.random_tensor("w", (1024, 1024), w.F32)])},
}  # fmt: skip


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve(Hub(REPOS, gated=frozenset({"org/gated"}))) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield running


def refused(name: str, *words: str) -> None:
    with pytest.raises(UserError) as caught:
        pull.resolve(name)
    assert str(caught.value).isprintable()
    for word in words:
        assert word in str(caught.value)


def fetched(hub: Hub) -> set[str]:
    return {path.split(f"/resolve/{REVISION}/")[1] for method, path, _ in hub.requests if method == "GET" and "/resolve/" in path}


def test_a_folder_with_one_weight_file(hub: Hub, tmp_path: Path) -> None:
    path = pull.resolve("org/single")
    assert path.is_relative_to(tmp_path / "cache/hub")
    assert list(open_checkpoint(path).tensors) == ["w"]
    assert fetched(hub) == {"config.json", "tokenizer.json", "model.safetensors"}
    hub.requests.clear()
    assert pull.resolve("org/single") == path
    assert fetched(hub) == set()


def test_a_sharded_folder(hub: Hub) -> None:
    assert set(open_checkpoint(pull.resolve("org/sharded")).tensors) == {"a", "b"}
    assert "consolidated.safetensors" not in fetched(hub)


def test_gguf_files(hub: Hub) -> None:
    assert pull.resolve("org/one-gguf").name == "m.gguf"
    assert pull.resolve("org/many-gguf:m-Q8_0.gguf").name == "m-Q8_0.gguf"
    assert pull.resolve("org/many-gguf:q4_k_m").name == "m-Q4_K_M.gguf"
    assert open_checkpoint(pull.resolve("org/many-gguf:deep/m-F16.gguf")).architecture == "llama"
    assert pull.resolve("org/one-gguf:mmproj-m.gguf").name == "mmproj-m.gguf"


@pytest.mark.parametrize("name", ["org/split-gguf", "org/split-gguf:s/m-00002-of-00003.gguf"])
def test_split_gguf(hub: Hub, name: str) -> None:
    assert list(open_checkpoint(pull.resolve(name)).tensors) == ["a", "b", "c"]


def test_what_the_hub_refuses(hub: Hub) -> None:
    refused("org/none", "org/none is not on the hub, or is private", "HF_TOKEN")
    refused("org/gated", "org/gated is gated", "HF_TOKEN")
    refused("org/many-gguf", "3 GGUF models fit", "m-Q4_K_M.gguf", "org/many-gguf:FILE")
    refused("org/many-gguf:m-", "3 GGUF models fit")
    refused("org/many-gguf:IQ1", "no GGUF file fits 'IQ1'", "m-Q8_0.gguf")
    refused("org/pickle", "no model.safetensors and no .gguf")
    refused("org/pickle:x", "no GGUF file fits 'x'", "none")
    refused("org/bad-index", "model.safetensors.index.json cannot be read")
    refused("org/short-index", "shard 'model-00001-of-00002.safetensors'", "not in the repository")
    refused("org/escape", "shard '../../etc/passwd'", "not in the repository")


def test_a_file_that_vanished(hub: Hub) -> None:
    with pytest.raises(UserError, match="org/single: gone is not in the repository"):
        pull_hub._Hub("org/single").fetch("gone", REVISION)


def test_a_broken_transfer_is_resumed(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 65_536)
    hub.cut["m.gguf"] = 1_500_000
    path = pull.resolve("org/large")
    assert path.read_bytes() == REPOS["org/large"]["m.gguf"]
    ranges = [wanted for method, _, wanted in hub.requests if method == "GET" and wanted]
    assert ranges and all(0 < int(r.removeprefix("bytes=").split("-")[0]) <= 1_500_000 for r in ranges)


def test_without_the_hub_the_cache_is_used(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pull.resolve("org/one-gguf")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert pull.resolve("org/one-gguf") == path
    (path.parent / path.name).unlink()
    refused("org/one-gguf", "org/one-gguf could not be fetched")
    refused("org/other", "org/other could not be fetched", "check the network")


def test_a_transfer_that_always_breaks_is_given_up(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def broken(*arguments: object, **_: object) -> str:
        calls.append(arguments)
        raise RuntimeError("connection broken\nin two lines")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", broken)
    refused("org/large", "org/large: m.gguf could not be fetched (RuntimeError: connection broken in two lines)")
    assert len(calls) == pull_hub.TRANSFER_TRIES


def test_the_disk_is_full() -> None:
    assert "does not fit on the disk" in str(pull_hub._Hub("o/r")._explain(OSError(28, "No space left on device"), "f"))


@pytest.mark.parametrize("name", ["a/b:c", "org/repo", "o.r-g_/r.e-p_o", "org/repo:dir/file.gguf"])
def test_hub_names(name: str) -> None:
    assert pull_hub.is_hub_name(name)


@pytest.mark.parametrize("name", ["a", "a/b/c", "/a/b", "a/", "../b", "a/..", "a/b:../c", "-/x", "a b/c", "a/b:c:d"])
def test_names_that_are_no_hub_names(name: str) -> None:
    assert not pull_hub.is_hub_name(name)
    with pytest.raises(UserError, match="org/repo"):
        pull_hub.fetch_hub(name)


def test_the_hubs_own_cache_is_used_unless_ours_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RIDGELINE_CACHE", raising=False)
    assert pull_hub._Hub("o/r").cache is None
