"""The numpy backend: the definition of what a graph means."""

from ridgeline.backends.reference.program import ReferenceProgram, load

__all__ = ["ReferenceProgram", "load"]
