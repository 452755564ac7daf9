"""Text to tokens and back: tokenizers, chat templates, streams of text and stop strings. Knows no model, engine or protocol."""
