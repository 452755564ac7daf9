"""Holds the compiled module `_native` (csrc/bindings.cc) and nothing else."""
