"""Generate a Python module from the declarations of the C headers, with a digest for both sides. Run by the build.

    python abi.py COMPILER PY [CPP]

reads the headers in its own folder through the compiler's preprocessor. It writes PY: enums, ctypes structs and
function signatures; and CPP: the digest, and static assertions that the compiler lays out structs as ctypes does.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

HEADERS = ("core_program.h", "core_device.h")
"""Each, with its includes, declares the exports of one kind of library."""

_NUMBERS = {
    "float": "c_float",
    "double": "c_double",
    "int32_t": "c_int32",
    "int64_t": "c_int64",
    "uint8_t": "c_uint8",
    "uint32_t": "c_uint32",
    "uint64_t": "c_uint64",
    "CoreStatus": "c_int32",
    "void": "None",
}
_ENUM = re.compile(r"typedef enum Core(\w+) \{ ([^{}]*?),? \} Core\1;")
_STRUCT = re.compile(r"typedef struct Core(\w+) \{ ([^{}]*) \} Core\1;")
_OPAQUE = re.compile(r"typedef struct Core(\w+) Core\1;")
_FUNCTION = re.compile(r'__attribute__\(\(visibility\("default"\)\)\) (\w[\w ]*\**) ?(core_\w+)\(([^()]*)\);')
_DESCRIBED = re.compile(r"^/\*((?:(?!\*/)[\s\S])*)\*/\ntypedef (?:enum|struct) Core(\w+) \{", re.MULTILINE)
_SENTENCE = re.compile(r"(?<=[\w\])])\. (?=[A-Z])")
_STATUS = "typedef int32_t CoreStatus;"
_DECLARED = re.compile(r"(?:const )?(\w+) ?(\**) ?(\w*)(?:\[(\d+)\])?")
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Field(NamedTuple):
    """A member of a struct or a parameter of a function: `type stars name[length]`, with stars levels of pointers."""

    name: str
    type: str
    stars: int
    length: int


class Declared(NamedTuple):
    """The declarations of a header, named without "Core"; functions by name, as their return type and parameters."""

    enums: dict[str, dict[str, int]]
    structs: dict[str, list[Field]]
    functions: dict[str, list[Field]]


class Unreadable(Exception):
    """A header contains an unsupported kind of declaration."""


def preprocessed(compiler: str, header: Path) -> str:
    """Return a header with its includes, preprocessed, without comments, with single spaces between words."""
    command = [compiler, "-x", "c", "-E", "-P", str(header)]
    text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return " ".join(text.split())


def read(text: str) -> Declared:
    """Return the declarations of a preprocessed header.

    Raises:
        Unreadable: a declaration of the core is of an unsupported kind.
    """
    enums = {name: _constants(name, body) for name, body in _ENUM.findall(text)}
    structs = {name: [_field(each) for each in body.split(";") if each.strip()] for name, body in _STRUCT.findall(text)}
    functions = {}
    for returned, name, taken in _FUNCTION.findall(text):
        parameters = [] if taken == "void" else taken.split(",")
        functions[name] = [_field(each) for each in (returned, *parameters)]
    rest = text.replace(_STATUS, "")
    for pattern in (_ENUM, _STRUCT, _OPAQUE, _FUNCTION):
        rest = pattern.sub("", rest)
    if left := re.search(r"[^;]*\b(Core|CORE_|core_)\w+[^;]*;", rest):
        raise Unreadable(f"no enum, struct or function as they are read here: {left[0].strip()}")
    return Declared(enums, structs, functions)


def descriptions(text: str) -> dict[str, str]:
    """Return the first sentence of the comment above each enum and struct of a header, by name without "Core"."""
    return {name: _SENTENCE.split(_flat(comment))[0].rstrip(".") + "." for comment, name in _DESCRIBED.findall(text)}


def _flat(comment: str) -> str:
    return " ".join(line.strip().removeprefix("*").strip() for line in comment.splitlines()).strip()


def _constants(enum: str, body: str) -> dict[str, int]:
    prefix = f"CORE_{_WORDS.sub('_', enum).upper()}_"
    constants = {}
    for each in body.split(","):
        found = re.fullmatch(r"(\w+) = (-?\d+)", each.strip())
        if found is None:
            raise Unreadable(f"not a name and a number: {each.strip()} of Core{enum}")
        constants[found[1]] = int(found[2])
    cut = len(prefix) if all(name.startswith(prefix) for name in constants) else len("CORE_")
    return {name[cut:]: value for name, value in constants.items()}


def _field(text: str) -> Field:
    found = _DECLARED.fullmatch(text.strip())
    if found is None:
        raise Unreadable(f"not a type and a name: {text.strip()}")
    kind, stars, name, length = found.groups()
    return Field(name, kind, len(stars), int(length or 0))


def _merged(headers: list[Declared]) -> tuple[dict[str, dict[str, int]], dict[str, list[Field]]]:
    """Return the enums and structs of all headers."""
    enums: dict[str, dict[str, int]] = {}
    structs: dict[str, list[Field]] = {}
    for header in headers:
        enums.update(header.enums)
        structs.update(header.structs)
    return enums, structs


def _type_of_field(field: Field, structs: dict[str, list[Field]]) -> str:
    """Return the ctypes type of a field. Pointers become addresses: numbers or None."""
    known = field.type.removeprefix("Core")
    if field.stars:
        kind = "c_void_p"
    elif known != field.type and known in structs:
        kind = known
    elif field.type in _NUMBERS and field.type != "void":
        kind = _NUMBERS[field.type]
    else:
        raise Unreadable(f"{field.name} is of the unknown type {field.type}")
    return f"{kind} * {field.length}" if field.length else kind


def _type_of_parameter(field: Field, structs: dict[str, list[Field]]) -> str:
    """Return the ctypes type of a parameter. Struct pointers stay typed; pointers to pointers are by reference."""
    if field.stars == 1 and field.type == "char":
        return "c_char_p"
    if field.stars == 1 and field.type.removeprefix("Core") in structs:
        return f"POINTER({field.type.removeprefix('Core')})"
    if field.stars:
        return "c_void_p" if field.stars == 1 else "POINTER(c_void_p)"
    if field.type not in _NUMBERS:
        raise Unreadable(f"{field.name} is of the unknown type {field.type}")
    return _NUMBERS[field.type]


def _docstring(name: str, described: dict[str, str]) -> str:
    """Return the docstring of a class: "Core" and its name, and what the header says of it."""
    text = f'"""Core{name}: {described[name]}' if name in described else f'"""Core{name}.'
    return "\n".join(textwrap.wrap(f'{text}"""', 120, initial_indent="    ", subsequent_indent="    "))


def module_of(headers: dict[str, Declared], described: dict[str, str]) -> str:
    """Return the Python module without its head, with docstrings from the descriptions of enums and structs."""
    enums, structs = _merged(list(headers.values()))
    lines = []
    for name, constants in enums.items():
        lines += ["", "", f"class {name}(IntEnum):", _docstring(name, described), ""]
        lines += [f"    {constant} = {value}" for constant, value in constants.items()]
    for name, fields in structs.items():
        lines += ["", "", f"class {name}(Structure):", _docstring(name, described), ""]
        lines += ["    __slots__ = ()", "    _fields_ = ("]
        lines += [f'        ("{field.name}", {_type_of_field(field, structs)}),' for field in fields]
        lines += ["    )"]
    lines += ["", "", "FUNCTIONS: dict[str, dict[str, tuple[Any, tuple[Any, ...]]]] = {"]
    for header, declared in headers.items():
        lines += [f'    "{header}": {{']
        for name, fields in declared.functions.items():
            returned, *taken = (_type_of_parameter(field, structs) for field in fields)
            lines += [f'        "{name}": ({returned}, ({"".join(f"{each}, " for each in taken)})),']
        lines += ["    },"]
    lines += ["}", '"""What each function returns, and what it takes, by the header of its libraries."""', ""]
    return "\n".join(lines)


def head_of(digest: str) -> str:
    """Return the head of the Python module, with the digest."""
    types = ", ".join(sorted({"POINTER", "Structure", "c_char_p", "c_void_p", *_NUMBERS.values()} - {"None"}))
    return f'''"""What the headers of csrc declare, in ctypes. Written from them by csrc/abi.py: not to be edited."""

from __future__ import annotations

from ctypes import {types}
from enum import IntEnum
from typing import Any

DIGEST = "{digest}"
"""Of the declarations: a library has the same, or was built from others."""
'''


def source_of(module: str, digest: str) -> str:
    """Return the C++ source: the digest, and static assertions of the layout of structs."""
    made: dict[str, Any] = {}
    exec(compile(module, "abi", "exec"), made)
    lines = ["// Written by abi.py.", "#include <cstddef>", ""]
    lines += [f'#include "{header}"' for header in HEADERS]
    lines += ["", f'const char* core_abi_digest(void) {{ return "{digest}"; }}', ""]
    for name, record in made.items():
        if not isinstance(record, type) or not issubclass(record, ctypes.Structure) or record is ctypes.Structure:
            continue
        lines.append(f"static_assert(sizeof(Core{name}) == {ctypes.sizeof(record)});")
        for field, *_ in record._fields_:
            place = getattr(record, field)
            lines.append(f"static_assert(offsetof(Core{name}, {field}) == {place.offset});")
            lines.append(f"static_assert(sizeof(Core{name}::{field}) == {place.size});")
    return "\n".join([*lines, ""])


def _write(path: Path, text: str) -> None:
    """Replace a file atomically, so that a concurrent reader sees either the old or the new text."""
    made = path.with_name(f".{path.name}.{os.getpid()}")
    made.write_text(text)
    made.replace(path)


def main() -> None:
    """Write the files."""
    compiler, module, *sources = sys.argv[1:]
    folder = Path(__file__).parent
    try:
        headers = {name: read(preprocessed(compiler, folder / name)) for name in HEADERS}
        digest = hashlib.sha256(module_of(headers, {}).encode()).hexdigest()[:16]
    except Unreadable as error:
        raise SystemExit(f"abi.py: {error}") from error
    described = {name: text for each in folder.glob("core*.h") for name, text in descriptions(each.read_text()).items()}
    text = head_of(digest) + module_of(headers, described)
    _write(Path(module), text)
    for source in sources:
        _write(Path(source), source_of(text, digest))


if __name__ == "__main__":
    main()
