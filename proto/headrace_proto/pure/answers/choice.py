"""Which formats a model writes, by what its chat template shows."""

from __future__ import annotations

from headrace_proto.pure.answers.formats import THOUGHTS

_CALLS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("", ("]<]minimax[>[",)),
    ("harmony", ("<|channel|>", "<|message|>", "<|start|>")),
    ("deepseek_v3", ("<｜tool▁call▁begin｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁call▁begin｜>",)),
    ("deepseek_dsml", ("｜DSML｜",)),
    ("kimi_k2", ("<|tool_call_begin|>",)),
    ("glm45", ("<tool_call>", "<arg_key>")),
    ("seed_oss", ("<seed:tool_call>",)),
    ("minimax_m2", ("<minimax:tool_call>",)),
    ("qwen3_coder", ("<tool_call>", "<function=", "<parameter=")),
    ("minicpm5", ("<function name=", "<param name=")),
    ("gemma4", ("<|tool_call>call:",)),
    ("functiongemma", ("<start_function_call>",)),
    ("lfm2", ("<|tool_list_start|>",)),
    ("lfm2", ("<|tool_call_start|>",)),
    ("lfm2", ("List of tools: [",)),
    ("functionary_v32", (">>>all",)),
    ("functionary_v31", ("<function=",)),
    ("apertus", ("<|tools_prefix|>",)),
    ("command_r7b", ("<|START_ACTION|>",)),
    ("nemotron", ("<TOOLCALL>",)),
    ("apriel", ("<tool_calls>",)),
    ("phi4_functools", ("functools[",)),
    ("phi4_mini", ("<|/tool|>",)),
    ("granite", ("<|tool_call|>",)),
    ("gigachat", ("<|function_call|>",)),
    ("hermes", ("<tool_call>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("pythonic", ("func_name1(",)),
    ("llama3_json", ('{"name": function name',)),
)
"""What the sources of templates contain; the first format of which all is there is the model's."""


def calls_of(template: str) -> str:
    """Return the format of calls of a model whose template has this source; "": none is known for it."""
    return next((name for name, signs in _CALLS if all(sign in template for sign in signs)), "")


def thoughts_of(template: str) -> str:
    """Return the format of thoughts of a model whose template has this source."""
    return next(
        (name for name, style in THOUGHTS.items() if name != "think" and style.open.rstrip() in template), "think"
    )


def opens_thought(thoughts: str, prompt: str) -> bool:
    """Return whether a prompt, as rendered, ends with the first mark of a thought."""
    return prompt.rstrip().endswith(THOUGHTS[thoughts].open.rstrip())
