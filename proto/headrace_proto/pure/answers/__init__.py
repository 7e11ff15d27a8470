"""Calls of tools and thoughts in generated text: machines that part them from it, one for each way of writing them."""
