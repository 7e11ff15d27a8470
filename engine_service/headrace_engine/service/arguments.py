"""The command line of headrace-engine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseDict, ParseError
from headrace.v1 import runtime_pb2

from headrace_engine import __version__
from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.options import EngineOptions
from headrace_engine.service.convert_config import RUNTIME_CONFIG

_MODEL_FLAGS = {
    "max_batch": "sequences in one step",
    "max_length": "tokens of the longest sequence, prompt and generated",
    "max_prefill_tokens": "tokens computed in one step",
    "max_waiting": "requests that may wait",
    "num_threads": "compute threads on a CPU",
    "num_blocks": "blocks of the KV pool",
    "memory_ratio": "share of memory to use",
    "dtype": "auto, float32, bfloat16 or float16",
    "compute_unit": "cuda, cpu or cpu_numa",
    "kv_cache_mode": "default, int8 or uint4",
}
"""Fields of the runtime config with a flag of their own; --set reaches all."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What the command line asks for.

    Attributes:
        engine: settings of the engine.
        models: models to install and start.
        drain_limit: seconds that running requests may take after SIGTERM.
        log_json: JSON rather than readable lines.
        core_threads: compute in threads of this process, not in processes of their own.
    """

    engine: EngineOptions
    listen: str
    models: tuple[RuntimeConfig, ...]
    drain_limit: float
    log_json: bool
    log_level: str
    reflection: bool
    core_threads: bool


def parse_arguments(argv: Sequence[str] | None = None) -> Arguments:
    """Read the command line; a wrong one ends the program with a line that says what is wrong."""
    parser = _parser()
    given = parser.parse_args(argv)
    settings = [(name, getattr(given, name)) for name in _MODEL_FLAGS if getattr(given, name) is not None]
    try:
        models = tuple(_model(text, [*settings, *map(_pair, given.set)]) for text in given.model)
    except ValueError as error:
        parser.error(str(error))
    if (settings or given.set) and not models:
        parser.error("settings of models were given, but no --model")
    return Arguments(
        engine=_engine_options(given),
        listen=given.listen,
        models=models,
        drain_limit=given.drain_limit,
        log_json=given.log_format == "json" or (given.log_format == "auto" and not sys.stderr.isatty()),
        log_level=given.log_level,
        reflection=given.reflection,
        core_threads=given.core == "thread",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("headrace-engine", description="Serve large language models over gRPC.")
    parser.add_argument("--version", action="version", version=__version__)
    _add_service_flags(parser)
    _add_engine_flags(parser)
    models = parser.add_argument_group("models", "Settings apply to every --model.")
    models.add_argument(
        "--model", action="append", default=[], metavar="NAME=PATH", help="install and start a model; repeatable"
    )
    for name, text in _MODEL_FLAGS.items():
        models.add_argument(f"--{name.replace('_', '-')}", dest=name, metavar="VALUE", help=text)
    models.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="any field of RuntimeConfig; repeatable"
    )
    return parser


def _add_service_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen", default="127.0.0.1:7071", metavar="HOST:PORT", help="default %(default)s; port 0: any"
    )
    parser.add_argument(
        "--drain-limit", type=_seconds, default=30.0, metavar="SECONDS", help="on SIGTERM; default %(default)g"
    )
    parser.add_argument("--log-format", choices=["auto", "json", "console"], default="auto")
    parser.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        default="info",
        help="debug also logs texts that may quote what requests sent; default %(default)s",
    )
    parser.add_argument("--no-reflection", dest="reflection", action="store_false", help="do not describe the services")


def _add_engine_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="engine", help="names the engine in handles and logs; default %(default)s")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="keep installed models over restarts")
    parser.add_argument(
        "--model-root", type=Path, action="append", default=[], metavar="DIR", help="model paths must lie in one"
    )
    parser.add_argument("--no-hub", dest="hub", action="store_false", help="take model paths as paths only")
    parser.add_argument("--backend", default="torch", help="what computes; default %(default)s")
    parser.add_argument("--native-ops", action="store_true", help="let the backend use the native core where it can")
    parser.add_argument(
        "--core-ping-limit",
        type=_positive_seconds,
        default=30.0,
        metavar="SECONDS",
        help="restart a core that answers nothing for so long; default %(default)g",
    )
    parser.add_argument("--core", choices=["process", "thread"], default="process", help="where models are computed")


def _engine_options(given: argparse.Namespace) -> EngineOptions:
    return EngineOptions(
        name=given.name,
        model_roots=tuple(given.model_root),
        state_dir=given.state_dir,
        backend=given.backend,
        native_ops=given.native_ops,
        allow_hub=given.hub,
        core_ping_limit=given.core_ping_limit,
        build=f"headrace-engine {__version__}",
    )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise ValueError(text)
    return seconds


def _positive_seconds(text: str) -> float:
    seconds = _seconds(text)
    if not seconds:
        raise ValueError(text)
    return seconds


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f'"{text}" is not FIELD=VALUE')
    return name, value


def _model(text: str, settings: Sequence[tuple[str, str]]) -> RuntimeConfig:
    """A model's config from NAME=PATH and settings, read by the rules of protobuf's JSON."""
    name, path = _pair(text)
    fields: dict[str, Any] = {"model_name": name, "model_path": path}
    for field, value in settings:
        fields[field] = _value(field, value)
    try:
        return RUNTIME_CONFIG.to_domain(ParseDict(fields, runtime_pb2.RuntimeConfig()))
    except ParseError as error:
        raise ValueError(f"settings of model {name}: {error}") from None


def _value(field: str, text: str) -> Any:
    """A setting as JSON where it is JSON; enums may be given without their prefix, in any case."""
    descriptor = runtime_pb2.RuntimeConfig.DESCRIPTOR.fields_by_name.get(field)
    if descriptor is not None and descriptor.enum_type is not None:
        prefix = descriptor.enum_type.values_by_number[0].name.removesuffix("UNSPECIFIED")
        return prefix + text.upper().removeprefix(prefix)
    if descriptor is not None and descriptor.type == descriptor.TYPE_STRING:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
