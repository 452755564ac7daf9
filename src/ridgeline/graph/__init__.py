"""The op graph: frozen data that every backend, the planner and the clock read. Knows nothing of batch, device or weight format."""
