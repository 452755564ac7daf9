"""The OpenAI protocol: chat completions, completions, responses, models. One file each; each turns a body into a generation and back."""
