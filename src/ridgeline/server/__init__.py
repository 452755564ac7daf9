"""HTTP in front of the engine: the OpenAI and Anthropic protocols, limits, keys, metrics. Knows no model insides and no kernels."""
