"""The command line of headrace-engine."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from headrace_proto.pure.addresses import Address
from headrace_proto.server.arguments import OneLineParser, add_server_flags, log_json
from headrace_proto.server.secrets import read_secrets
from headrace_proto.server.tls import Certificates, add_tls_flags, certificates_of

from headrace_engine import __version__
from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.config.logits_processors import read_sources
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.environment import PROCESSORS_VARIABLE, logits_processors
from headrace_engine.service.program.engine_flags import EXAMINED, add_doctor_flags, add_engine_flags
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
        certificates: for TLS; None: no encryption.
        secrets: one of which every call must bring; none: anyone may call.
        metrics: address of the metrics' HTTP port; None: there is none.
        vllm_model: model to serve by vLLM's service too; "": none.
        doctor: say what would come of the command line, instead of serving.
        doctor_json: say it as JSON.
    """

    engine: EngineOptions
    listen: str
    models: tuple[RuntimeConfig, ...]
    drain_limit: float
    log_json: bool
    log_level: str
    reflection: bool
    core_threads: bool
    certificates: Certificates | None
    secrets: tuple[str, ...]
    metrics: Address | None = None
    vllm_model: str = ""
    doctor: bool = False
    doctor_json: bool = False


def parse_arguments(argv: Sequence[str] | None = None) -> Arguments:
    """Parse the command line; a wrong one ends the program with one line that names the error."""
    parser = _parser()
    given = parser.parse_args(argv)
    try:
        if given.json and given.doctor is None:
            raise ValueError("--json is the form of --doctor's answer, and there is no --doctor")
        models = _models(given)
        options = _engine_options(given)
        certificates = certificates_of(given)
        if given.vllm_service is not None:
            _check_vllm()
        secrets = () if given.secret_file is None else read_secrets(given.secret_file)
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
        certificates=certificates,
        secrets=secrets,
        metrics=given.metrics,
        vllm_model=given.vllm_service or "",
        doctor=given.doctor is not None,
        doctor_json=given.json,
    )


def _models(given: argparse.Namespace) -> tuple[RuntimeConfig, ...]:
    flags = [(name, getattr(given, name)) for name in _MODEL_FLAGS]
    settings = [Setting.read(_flag(name), name, text) for name, text in flags if text is not None]
    settings += map(Setting.from_pair, given.set)
    texts = [*given.model, *([f"{EXAMINED}={given.doctor}"] if given.doctor else [])]
    if settings and not texts:
        raise ValueError(f"{settings[0].argument} is a setting of models, but there is no --model")
    models = tuple(read_model(text, settings, given.backend) for text in texts)
    names = Counter(model.model_name for model in models)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise ValueError(f'--model: "{twice}" is given twice; each model needs a name of its own')
    return models


def _check_vllm() -> None:
    """Refuse --vllm-service where its library is missing.

    Raises:
        ValueError: the message is one line that names the argument.
    """
    if find_spec("smg_grpc_proto") is None:
        raise ValueError("--vllm-service: its library is not installed: pip install 'headrace-engine[smg]'")


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser("headrace-engine", description="Serve large language models over gRPC.")
    parser.add_argument("--version", action="version", version=__version__)
    add_server_flags(parser, port=7071, running="running requests")
    add_tls_flags(parser)
    add_engine_flags(parser)
    parser.add_argument(
        "--vllm-service",
        metavar="MODEL",
        help="serve this model by vLLM's gRPC service too (vllm.grpc.engine.VllmEngine); needs the extra smg",
    )
    add_doctor_flags(parser)
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
        hand_over_failed=given.hand_over_failed,
        file_limit=given.file_limit,
        stream_interval=given.stream_interval,
        step_target=given.step_target,
        logits_processors=processors,
    )
