"""Request bodies as pydantic models: names and types only. What they mean is in the module of each endpoint."""
