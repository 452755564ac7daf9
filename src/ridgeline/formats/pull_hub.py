"""Models of a Hugging Face hub, by `org/repo` or `org/repo:file`. `huggingface_hub` does the transfer: cache, resume, tokens, HF_ENDPOINT.

Weights are fetched as safetensors or GGUF only; pickle files and code are never downloaded.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from ridgeline.errors import UserError
from ridgeline.formats.progress import cache_dir
from ridgeline.formats.safetensors import INDEX, SINGLE

HUB_NAME = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<file>[^:]+))?")
TRANSFER_TRIES = 3
_SHARD = re.compile(r"(?P<prefix>.+)-\d{5}-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_BESIDE = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
)  # fmt: skip


def is_hub_name(name: str) -> bool:
    """Whether `name` has the form `org/repo` or `org/repo:file`."""
    match = HUB_NAME.fullmatch(name)
    return match is not None and ".." not in name


def fetch_hub(name: str) -> Path:
    """Download what `org/repo[:file]` needs and return the local model: a folder for safetensors, a file for GGUF.

    `file` is a .gguf of the repository, or a part of its name that fits only one, such as a quantization. Raises `UserError`
    for an unknown or gated repository, an unknown file, an ambiguous choice, and for network trouble without a cached copy.
    """
    match = HUB_NAME.fullmatch(name)
    if match is None or ".." in name:
        raise UserError(f"{name!r} is not of the form org/repo or org/repo:file", field="model", value=name)
    repo, asked = match["repo"], match["file"]
    hub = _Hub(repo)
    names, revision = hub.listing()
    try:
        return _fetch(hub, asked, names, revision)
    except UserError:
        # What is missing in an incomplete local copy is no fault of the repository.
        if hub.unreached is not None:
            raise hub.unreached from None
        raise


def _fetch(hub: _Hub, asked: str | None, names: Sequence[str], revision: str) -> Path:
    if asked is None and (SINGLE in names or INDEX in names):
        weights = _safetensors(hub, names, revision)
        beside = [n for n in _BESIDE if n in names]
        return [hub.fetch(n, revision) for n in (*beside, *weights)][-1].parent
    first, *rest = _gguf_files(hub.repo, asked, [n for n in names if n.lower().endswith(".gguf")])
    path = hub.fetch(first, revision)
    for shard in rest:
        hub.fetch(shard, revision)
    return path


def _safetensors(hub: _Hub, names: Sequence[str], revision: str) -> list[str]:
    """The weight files: the single one, or the index and every shard it names."""
    if SINGLE in names:
        return [SINGLE]
    try:
        shards = set(json.loads(hub.fetch(INDEX, revision).read_bytes())["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise UserError(f"{hub.repo}: {INDEX} cannot be read", field="model", value=hub.repo, remedy="choose another repository") from None
    missing = sorted(str(s) for s in shards if s not in names)
    if missing:
        raise UserError(
            f"{hub.repo}: shard {missing[0]!r} of {INDEX} is not in the repository",
            field="model",
            value=missing[0],
            remedy="choose another repository",
        )
    return [*sorted(shards), INDEX]


def _gguf_files(repo: str, asked: str | None, files: list[str]) -> list[str]:
    """The file (or all shards, first one first) that was asked for, or the only model of the repository."""
    models: dict[str, list[str]] = {}
    for file in sorted(files):
        match = _SHARD.fullmatch(file)
        models.setdefault(f"{match['prefix']}-of-{match['count']}" if match else file, []).append(file)
    groups = [g for g in models.values() if not g[0].rpartition("/")[2].lower().startswith("mmproj")]
    if asked is not None:
        groups = [g for g in models.values() if asked in g] or [g for g in groups if asked.lower() in g[0].lower()]
    if len(groups) == 1:
        return groups[0]
    choices = ", ".join(g[0] for g in (groups or list(models.values()))[:8]) or "none"
    if not groups and asked is None:
        raise UserError(
            f"{repo} has no {SINGLE} and no .gguf file",
            field="model",
            value=repo,
            limit=".safetensors, .gguf",
            remedy="choose a repository with such weights",
        )
    what = f"no GGUF file fits {asked!r}" if asked is not None and not groups else f"{len(groups)} GGUF models fit"
    raise UserError(
        f"{repo}: {what}; GGUF files: {choices}", field="model", value=asked or repo, limit=1, remedy=f"say which, as {repo}:FILE"
    )


class _Hub:
    """Calls into `huggingface_hub` for one repository, imported when first needed, with its errors turned into one plain line."""

    def __init__(self, repo: str) -> None:
        self.repo = repo
        self.endpoint = os.environ.get("HF_ENDPOINT") or None
        self.cache = cache_dir() / "hub" if os.environ.get("RIDGELINE_CACHE") else None
        self.unreached: UserError | None = None

    def listing(self) -> tuple[list[str], str]:
        """File names and commit of the repository; from the local cache when the hub cannot be reached."""
        from huggingface_hub import HfApi

        try:
            info = HfApi(endpoint=self.endpoint).model_info(self.repo)
        except Exception as error:  # the library's network errors have no common base across its versions
            local = self._local()
            if local is None or not _is_network(error):
                raise self._explain(error, None) from None
            self.unreached = self._explain(error, None)
            return [str(p.relative_to(local)) for p in local.rglob("*") if p.is_file()], local.name
        return [s.rfilename for s in info.siblings or ()], info.sha or "main"

    def fetch(self, name: str, revision: str, tries: int = TRANSFER_TRIES) -> Path:
        """One file, resumed when a part of it is there, also after the connection broke."""
        from huggingface_hub import hf_hub_download

        try:
            return Path(hf_hub_download(self.repo, name, revision=revision, cache_dir=self.cache, endpoint=self.endpoint))
        except Exception as error:  # as above
            if tries <= 1 or not _is_network(error) or getattr(error, "errno", None) is not None:
                raise self._explain(error, name) from None
        return self.fetch(name, revision, tries - 1)

    def _local(self) -> Path | None:
        """The newest snapshot of the repository in the cache, complete or not."""
        from huggingface_hub import constants

        folder = Path(self.cache or constants.HF_HUB_CACHE) / f"models--{self.repo.replace('/', '--')}" / "snapshots"
        return max(folder.glob("*"), key=lambda p: p.stat().st_mtime, default=None)

    def _explain(self, error: Exception, name: str | None) -> UserError:
        kind, what = type(error).__name__, self.repo if name is None else f"{self.repo}: {name}"
        remedy = "check the network and HF_ENDPOINT, then try again: what was fetched is kept"
        if kind == "GatedRepoError":
            problem, remedy = "is gated", "accept its terms on the hub and set HF_TOKEN"
        elif kind == "RepositoryNotFoundError":
            problem, remedy = "is not on the hub, or is private", "check the name; for a private repository set HF_TOKEN"
        elif kind in ("RemoteEntryNotFoundError", "EntryNotFoundError", "RevisionNotFoundError"):
            problem, remedy = "is not in the repository", "check the name"
        elif getattr(error, "errno", None) == 28:
            problem, remedy = "does not fit on the disk", "make room, or set RIDGELINE_CACHE to another folder"
        else:
            problem = f"could not be fetched ({kind}: {' '.join(str(error).split())[:200]})"
        return UserError(f"{what} {problem}", field="model", value=what, remedy=remedy)


def _is_network(error: Exception) -> bool:
    """Whether the hub was not reached, as opposed to having answered that it refuses."""
    return getattr(error, "response", None) is None
