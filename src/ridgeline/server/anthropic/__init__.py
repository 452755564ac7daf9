"""The Anthropic protocol: messages and token counts, in their blocks, events and error objects."""
