"""The numpy backend: the definition of what a graph means. Start at `program.load`."""
