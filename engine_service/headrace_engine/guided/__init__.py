"""Guided decoding: restricts the text of a request, token by token, to its `response_format`.

Parsing is done by the library llguidance. It was chosen over xgrammar, which needs torch and triton and compiles every
grammar before the first token; llguidance has no dependencies, compiles a typical schema within a millisecond, since it
builds its automata lazily, and refuses keywords of JSON Schema that it does not know.
"""
