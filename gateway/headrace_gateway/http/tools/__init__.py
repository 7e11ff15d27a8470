"""Calls of tools in generated text: pure text machines, one for each way in which models write them."""
