"""What the HTTP side counts by itself. Plain numbers, changed on the event loop only; `metrics` publishes them."""

from __future__ import annotations

from collections import Counter


class Meters:
    """replies: by route and status; refused: requests turned away before they were queued, by code; gone: clients that left early."""

    def __init__(self) -> None:
        self.replies: Counter[tuple[str, int]] = Counter()
        self.refused: Counter[str] = Counter()
        self.gone = 0
