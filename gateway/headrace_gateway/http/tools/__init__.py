"""Calls of tools and thoughts in generated text: text machines, one for each way in which models write them."""
