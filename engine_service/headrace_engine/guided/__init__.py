"""Guided decoding: text that a request's `response_format` allows, token by token.

The library llguidance does the parsing. It was chosen over xgrammar, which needs torch and triton, and compiles every
grammar before the first token; llguidance depends on nothing, compiles a usual schema within a millisecond, since it
builds its automata as they are met, and refuses keywords of JSON Schema that it does not know.
"""
