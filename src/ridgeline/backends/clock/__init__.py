"""A backend without numbers: it knows what a step would cost on a machine of the table, and moves a clock. Nothing is computed."""

from ridgeline.backends.clock.program import ClockProgram
from ridgeline.backends.clock.seconds import StepSeconds

__all__ = ["ClockProgram", "StepSeconds"]
