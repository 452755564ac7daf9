"""Ridgeline: inference engine and serving system for open-weight language models. Importing it loads nothing more."""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it, which takes longer to import than this
if TYPE_CHECKING:
    from typing import Any

    from ridgeline.engine.llm import LLM
    from ridgeline.types import CompletionOutput, RequestOutput, SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    """What is in `__all__` comes at its first use."""
    if name == "LLM":
        from ridgeline.engine.llm import LLM

        return LLM
    if name in __all__:
        import ridgeline.types

        return getattr(ridgeline.types, name)
    raise AttributeError(f"module 'ridgeline' has no attribute {name!r}")
