"""Ridgeline: inference engine and serving system for open-weight language models. Importing it loads no kernel and no model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ridgeline.types import CompletionOutput, RequestOutput, SamplingParams

if TYPE_CHECKING:
    from ridgeline.engine.llm import LLM

__version__ = "0.1.0"
__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "LLM":  # loaded on first use, so that `import ridgeline` stays fast
        from ridgeline.engine.llm import LLM

        return LLM
    raise AttributeError(f"module 'ridgeline' has no attribute {name!r}")
