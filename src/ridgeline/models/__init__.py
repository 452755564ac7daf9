"""Model families: a config that refuses what it does not know, and the graph that follows from it."""

from ridgeline.models.registry import ModelSpec, load_spec

__all__ = ["ModelSpec", "load_spec"]
