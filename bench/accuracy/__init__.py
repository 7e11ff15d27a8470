"""Measurements of what quantizing costs: perplexity of a text, and answers, beside those in float32."""
