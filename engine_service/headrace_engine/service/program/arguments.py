"""The command line of headrace-engine."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace_proto.server.arguments import OneLineParser, add_server_flags, log_json, seconds

from headrace_engine import __version__
from headrace_engine.config import RuntimeConfig
from headrace_engine.core.scheduling.pace import LONGEST, SHORTEST, TIMES
from headrace_engine.engine.config.logits_processors import read_sources
from headrace_engine.engine.config.options import FILE_LIMIT, STREAM_INTERVAL, EngineOptions
from headrace_engine.environment import PROCESSORS_VARIABLE, logits_processors
from headrace_engine.process import AUTO_BACKEND, BACKENDS
from headrace_engine.service.program.model_arguments import Setting, allowed_values, read_model

_MODEL_FLAGS = {
    "max_batch": "maximum sequences per step",
    "max_length": "maximum tokens of a sequence, prompt and generated",
    "max_prefill_tokens": "token budget of a step",
    "max_waiting": "maximum sequences in the queue",
    "num_threads": "compute threads on a CPU",
    "num_blocks": "number of blocks of the KV pool",
    "memory_ratio": "fraction of memory to use",
    "dtype": "data type of the computation",
    "compute_unit": "device to compute on",
    "kv_cache_mode": "storage format of keys and values",
}
"""Fields of RuntimeConfig that have a flag of their own; --set accepts every field."""

_ABOUT_MODELS = """Settings apply to every --model. If --state-dir has a model of that name with another path or
other settings, the model of the command line replaces it, once its files were read."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """Parsed command line.

    Attributes:
        engine: settings of the engine.
        models: models to install and start.
        drain_limit: seconds that running requests have to end after SIGTERM.
        log_json: log JSON rather than readable lines.
        core_threads: run cores in threads of this process rather than in processes of their own.
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
    """Parse the command line; a wrong one ends the program with one line that names the error."""
    parser = _parser()
    given = parser.parse_args(argv)
    try:
        models = _models(given)
        options = _engine_options(given)
    except ValueError as error:
        parser.error(str(error))
    return Arguments(
        engine=options,
        listen=str(given.listen),
        models=models,
        drain_limit=given.drain_limit,
        log_json=log_json(given.log_format),
        log_level=given.log_level,
        reflection=given.reflection,
        core_threads=given.core == "thread",
    )


def _models(given: argparse.Namespace) -> tuple[RuntimeConfig, ...]:
    texts = [(name, getattr(given, name)) for name in _MODEL_FLAGS]
    settings = [Setting.read(_flag(name), name, text) for name, text in texts if text is not None]
    settings += map(Setting.from_pair, given.set)
    if settings and not given.model:
        raise ValueError(f"{settings[0].argument} is a setting of models, but there is no --model")
    models = tuple(read_model(text, settings, given.backend) for text in given.model)
    names = Counter(model.model_name for model in models)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise ValueError(f'--model: "{twice}" is given twice; each model needs a name of its own')
    return models


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser("headrace-engine", description="Serve large language models over gRPC.")
    parser.add_argument("--version", action="version", version=__version__)
    add_server_flags(parser, port=7071, running="running requests")
    _add_engine_flags(parser)
    models = parser.add_argument_group("models", _ABOUT_MODELS)
    models.add_argument(
        "--model", action="append", default=[], metavar="NAME=PATH", help="install and start a model; repeatable"
    )
    for name, text in _MODEL_FLAGS.items():
        models.add_argument(_flag(name), dest=name, metavar="VALUE", help=f"{text}: {allowed_values(name)}")
    models.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="any field of RuntimeConfig; repeatable"
    )
    return parser


def _add_engine_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="engine", help="name of the engine in handles and logs; default %(default)s")
    parser.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="folder that keeps installed models across restarts; for one engine at a time",
    )
    parser.add_argument(
        "--model-root",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="folder that callers may install models from; repeatable; without one, callers cannot give paths",
    )
    parser.add_argument(
        "--write-root",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="folder that callers may have models written into, and install them from; repeatable; without one, "
        "models are written into memory only",
    )
    hubs = parser.add_mutually_exclusive_group()
    hubs.add_argument("--no-hub", action="store_true", help="disable hub access: model paths are local paths only")
    hubs.add_argument(
        "--hub",
        type=_hub,
        action="append",
        default=[],
        metavar="URL",
        help="hub that callers may use besides the engine's own; repeatable",
    )
    parser.add_argument(
        "--backend",
        choices=[AUTO_BACKEND, *BACKENDS],
        default=AUTO_BACKEND,
        help="compute backend; default %(default)s: torch on CUDA devices, else cpu",
    )
    parser.add_argument(
        "--logits-processor",
        action="append",
        metavar="NAME=PATH",
        help=f".py or .cu file that requests may use as NAME; repeatable; default: ${PROCESSORS_VARIABLE}, "
        "with entries separated by semicolons",
    )
    parser.add_argument(
        "--native-ops", action="store_true", help="let the torch backend use the native library where it can"
    )
    _add_limits(parser)
    parser.add_argument(
        "--core",
        choices=["process", "thread"],
        default="process",
        help="run each model's core in a process or a thread",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--core-ping-limit",
        type=seconds(above=0.0),
        default=30.0,
        metavar="SECONDS",
        help="time without progress after which a core is restarted; default %(default)g",
    )
    parser.add_argument(
        "--file-limit",
        type=seconds(above=0.0),
        default=FILE_LIMIT,
        metavar="SECONDS",
        help="timeout of reading a model's files during an install, in case a file system hangs; default %(default)g",
    )
    parser.add_argument(
        "--stream-interval",
        type=seconds(),
        default=STREAM_INTERVAL,
        metavar="SECONDS",
        help="minimum interval between token messages of a request; tokens of faster steps are sent together; "
        "0: send after every step; default %(default)g",
    )
    parser.add_argument(
        "--step-target",
        type=seconds(),
        default=None,
        metavar="SECONDS",
        help="duration of a step to aim at when prompts are computed alongside running streams; "
        "0: use all of max_prefill_tokens; "
        f"default: {TIMES} times the duration of a step without prompts, at least {SHORTEST:g} and at most {LONGEST:g}",
    )


def _engine_options(given: argparse.Namespace) -> EngineOptions:
    """Build the settings of the engine.

    Raises:
        ValueError: the message is one line that names the argument.
    """
    processors = _processors(given.logits_processor)
    try:
        return _options(given, processors)
    except ValueError as error:  # only the name can still be wrong
        raise ValueError(f"--name: {error}") from None


def _processors(entries: Sequence[str] | None) -> dict[str, Path]:
    where = "--logits-processor"
    if entries is None:
        where, entries = PROCESSORS_VARIABLE, logits_processors()
    try:
        return read_sources(entries)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _options(given: argparse.Namespace, processors: dict[str, Path]) -> EngineOptions:
    return EngineOptions(
        name=given.name,
        model_roots=(*given.model_root, *given.write_root),
        write_roots=tuple(given.write_root),
        state_dir=given.state_dir,
        backend=given.backend,
        allow_hub=not given.no_hub,
        hubs=tuple(given.hub),
        core_ping_limit=given.core_ping_limit,
        file_limit=given.file_limit,
        stream_interval=given.stream_interval,
        step_target=given.step_target,
        logits_processors=processors,
    )


def _hub(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f'"{text}" is not the URL of a hub: it must begin with http:// or https://')
    return text
