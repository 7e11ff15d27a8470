"""Python types of message values."""

FORMS = {
    "ResponseFormat": (
        '{"type": "json_object"}, {"type": "json_schema", "json_schema": {…}}, {"type": "regex", "regex": "[0-9]+"}, '
        '{"type": "choice", "choices": ["yes", "no"]}, {"type": "grammar", "text": …, "syntax": "LARK" or "EBNF"} or '
        '{"type": "structural_tag", "triggers": […], "structures": [{"begin": …, "schema": {…}, "end": …}]}'
    ),
    "Lease": '{"running": 60, "ended": 600}, in seconds',
    "LogitsProcessor": '{"name": "steer", "arguments": [6.0, 28]}',
    "RopeScaling": (
        '{"type": "LINEAR", "factor": 2.0}; types are "MODEL" (the default), "LINEAR", "DYNAMIC", "YARN" and "LLAMA3"'
    ),
    "Adapter": '{"name": …, "path": …}',
}
"""Python type by message name."""
