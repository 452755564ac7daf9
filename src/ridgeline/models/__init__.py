"""Model families: a config that refuses what it does not know, and the graph that follows from it. Start at `registry.load_spec`."""
