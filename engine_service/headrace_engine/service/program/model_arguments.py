"""Models on the command line: NAME=PATH, and settings by the rules of protobuf's JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.json_format import ParseDict, ParseError
from headrace_proto.pure.strict_json import BadJson, read_json
from headrace_proto.v1 import runtime_pb2

from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.config.fields import RUNTIME
from headrace_engine.engine.config.runtime import check_config
from headrace_engine.errors import InvalidArgument
from headrace_engine.service.convert.config import RUNTIME_CONFIG

_FIELDS: dict[str, Any] = dict(runtime_pb2.RuntimeConfig.DESCRIPTOR.fields_by_name)
_OF_MODEL = ("model_name", "model_path")
_DURATION = "google.protobuf.Duration"


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of the runtime config from the command line.

    Attributes:
        argument: argument that set it, such as "--max-batch" or "--set max_batch".
        value: value for protobuf's JSON.
    """

    argument: str
    field: str
    value: Any

    @classmethod
    def read(cls, argument: str, field: str, text: str) -> Setting:
        """Parse the value of a field.

        Raises:
            ValueError: one line that names argument, value, and what is allowed.
        """
        descriptor = _FIELDS.get(field)
        if descriptor is None or field in _OF_MODEL:
            raise ValueError(f"{argument}={text}: {_unknown(field)}")
        try:
            value = _value(descriptor, text)
        except BadJson as error:
            raise ValueError(f'{argument}: "{text}" {error}') from None
        except ValueError as error:
            raise ValueError(f'{argument}: "{text}" is not {error}') from None
        return cls(argument, field, value)

    @classmethod
    def from_pair(cls, text: str) -> Setting:
        """Parse FIELD=VALUE, as given to --set.

        Raises:
            ValueError: one line that names argument, value, and what is allowed.
        """
        field, equals, value = text.partition("=")
        if not equals or not field:
            raise ValueError(f'--set: "{text}" is not FIELD=VALUE, such as max_batch=8')
        return cls.read(f"--set {field}", field, value)


def read_model(text: str, settings: Sequence[Setting], backend: str) -> RuntimeConfig:
    """Build a model's config from NAME=PATH and settings.

    Args:
        backend: backend that will compute it.

    Raises:
        ValueError: one line that names argument, value, and what is allowed.
    """
    name, equals, path = text.partition("=")
    if not equals or not name or not path:
        raise ValueError(f'--model: "{text}" is not NAME=PATH, such as smol=/models/smol.gguf')
    values = {setting.field: setting.value for setting in settings}
    try:
        message = ParseDict({"model_name": name, "model_path": path, **values}, runtime_pb2.RuntimeConfig())
        config: RuntimeConfig = RUNTIME_CONFIG.to_domain(message)
        check_config(config, backend)
    except ParseError as error:
        raise ValueError(f"settings of --model {text}: {_one_line(error)}") from None
    except InvalidArgument as error:
        raise ValueError(f"--model {text}: {error.message.removeprefix('config.')}") from None
    return config


def allowed_values(field: str) -> str:
    """Return the allowed values of a field, for --help: the enum values that this build supports, or the range."""
    enum = _FIELDS[field].enum_type
    if enum is None:
        return RUNTIME[field].range_text
    honoured = RUNTIME[field].honoured
    return ", ".join(name for name in _choices(enum) if honoured is None or name.upper() in honoured)


def _unknown(field: str) -> str:
    if field in _OF_MODEL:
        return "it is given by --model NAME=PATH"
    near = get_close_matches(field, set(_FIELDS) - set(_OF_MODEL), n=1)
    meant = f'; did you mean "{near[0]}"?' if near else f", which has: {', '.join(sorted(set(_FIELDS)))}"
    return f'"{field}" is not a field of RuntimeConfig{meant}'


def _value(descriptor: FieldDescriptor, text: str) -> Any:
    """Parse the value of a field, for protobuf's JSON.

    Raises:
        ValueError: the message says what was expected.
    """
    if descriptor.is_repeated or (descriptor.message_type and descriptor.message_type.full_name != _DURATION):
        return _spelled(descriptor, _json(text))
    if descriptor.message_type:
        return f"{_ranged(descriptor, text.removesuffix('s'), float):.9f}s"
    if descriptor.enum_type:
        return _choice(descriptor.enum_type, text)
    if descriptor.cpp_type == descriptor.CPPTYPE_STRING:
        return text
    if descriptor.cpp_type == descriptor.CPPTYPE_BOOL:
        return _read(_BOOLEANS.__getitem__, text.lower(), "true or false")
    fractions = descriptor.cpp_type in (descriptor.CPPTYPE_FLOAT, descriptor.CPPTYPE_DOUBLE)
    return _ranged(descriptor, text, float if fractions else int)


def _json(text: str) -> Any:
    try:
        return read_json(text)
    except BadJson as error:
        if error.path:
            raise
        raise ValueError('JSON, such as [0, 1] or {"running": "60s"}') from None


def _spelled(descriptor: FieldDescriptor, value: Any) -> Any:
    """Complete short names of enums within JSON to those of protobuf's JSON."""
    if isinstance(value, list):
        return [_spelled(descriptor, item) for item in value]
    if descriptor.enum_type and isinstance(value, str):
        return _choice(descriptor.enum_type, value)
    if descriptor.message_type and isinstance(value, dict):
        inner = descriptor.message_type.fields_by_name
        return {name: _spelled(inner[name], part) if name in inner else part for name, part in value.items()}
    return value


_BOOLEANS = {"true": True, "false": False}


def _ranged(descriptor: FieldDescriptor, text: str, number: type[int] | type[float]) -> int | float:
    field = RUNTIME[descriptor.name]
    what = f"a {_KINDS[number]}; allowed: {field.range_text}"
    value: int | float = _read(number, text, what)
    if field.violation(value):
        raise ValueError(what)
    return value


_KINDS: dict[type, str] = {int: "whole number in range", float: "number in range"}


def _read(read: Callable[[str], Any], text: str, what: str) -> Any:
    try:
        return read(text)
    except (ValueError, KeyError):
        raise ValueError(what) from None


def _choice(enum: EnumDescriptor, text: str) -> str:
    """Return the full name of an enum value, which may be given without its prefix, in any case."""
    prefix = _prefix(enum)
    name = text.lower().replace("-", "_").removeprefix(prefix.lower())
    if name not in _choices(enum):
        raise ValueError(f"one of: {', '.join(_choices(enum))}")
    return prefix + name.upper()


def _choices(enum: EnumDescriptor) -> list[str]:
    prefix = _prefix(enum)
    return [value.name.removeprefix(prefix).lower() for value in enum.values if value.number]


def _prefix(enum: EnumDescriptor) -> str:
    return enum.values_by_number[0].name.removesuffix("UNSPECIFIED")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
