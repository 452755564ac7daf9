"""API keys: who may call, compared in constant time, and how many tokens each may use. Knows no protocol; no key is ever logged."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.errors import UserError
from ridgeline.options import parse_count
from ridgeline.server.failure import HttpError

MAX_KEYS = 10_000


@dataclass(slots=True)
class Key:
    """One caller. budget: tokens (prompt and answer) that it may use while the server runs, None for no limit; reserved: promised to
    requests that run."""

    name: str
    digest: bytes = field(repr=False)
    budget: int | None = None
    used: int = 0
    reserved: int = 0
    requests: int = 0

    def allow(self, prompt: int, answer: int | None) -> int | None:
        """Most answer tokens for a prompt of so many tokens, None for no limit of ours. Raises 429 when the budget does not hold it."""
        if self.budget is None:
            return answer
        left = self.budget - self.used - self.reserved
        need = prompt + (1 if answer is None else answer)
        if need > left:
            message = f"the token budget of key {self.name!r} is {self.budget}: {max(0, left)} are left, this request needs {need}"
            headers = {"x-should-retry": "false"}
            raise HttpError(429, message, code="insufficient_quota", headers=headers)
        return left - prompt if answer is None else answer

    def document(self) -> dict[str, Any]:
        left = None if self.budget is None else max(0, self.budget - self.used)
        return {"name": self.name, "requests": self.requests, "used_tokens": self.used, "budget_tokens": self.budget, "left_tokens": left}


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


class Keys:
    """All keys of a server."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = tuple(keys)

    def find(self, headers: Mapping[bytes, bytes]) -> Key:
        """The caller's key, from `Authorization: Bearer` or `x-api-key`. Raises 401 in the same time for every wrong one."""
        given = headers.get(b"authorization", b"")
        scheme, _, secret = given.partition(b" ")
        secret = secret.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        asked = _digest(secret)
        found: Key | None = None
        for key in self._keys:  # all of them, whichever fits
            if hmac.compare_digest(key.digest, asked):
                found = key
        if found is None or not secret:
            message = "no API key was given; send Authorization: Bearer KEY" if not secret else "the API key is wrong"
            raise HttpError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
        return found


def load_keys(given: Iterable[str], file: str | None) -> Keys | None:
    """Keys from the command line and from a file of lines `KEY [NAME [TOKENS]]`; None when there are none. Raises `UserError`."""
    keys = [Key(f"key{number}", _digest(secret.encode())) for number, secret in enumerate((g for g in given if g), 1)]
    if file is not None:
        keys += _read(Path(file))
    if file is not None and not keys:
        raise UserError(f"--api-key-file {file} holds no key", field="--api-key-file", value=file)
    if len(keys) > MAX_KEYS:
        raise UserError(f"{len(keys)} API keys, at most {MAX_KEYS}", field="--api-key-file", value=len(keys), limit=MAX_KEYS)
    names = [k.name for k in keys]
    twice = next((n for n in names if names.count(n) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise UserError(f"--api-key-file: two keys are named {twice!r}", field="--api-key-file", value=twice)
    return Keys(keys) if keys else None


def _read(path: Path) -> list[Key]:
    try:
        lines = path.read_text("utf8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--api-key-file {path}: {error}", field="--api-key-file", value=str(path)) from None
    found = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) > 3:
            raise UserError(f"{path}:{number} has {len(words)} words, must be KEY [NAME [TOKENS]]", field="--api-key-file")
        budget = parse_count(words[2], name=f"{path}:{number} TOKENS") if len(words) == 3 else None
        found.append(Key(words[1] if len(words) > 1 else f"line{number}", _digest(words[0].encode()), budget))
    return found
