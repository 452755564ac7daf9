"""The native CPU backend: a graph is lowered once to a native program; a step is one native call."""

from ridgeline.backends.cpu.native import _native
from ridgeline.backends.cpu.program import CpuProgram, load
from ridgeline.backends.cpu.threads import default_threads

__all__ = ["CpuProgram", "_native", "default_threads", "load"]
