"""Guessing what a model will say next. `propose(sequences) -> drafts`; runners are passed in, verification is the engine's."""
