"""Opens the files of a model, and checks them against a config. Blocking."""

from __future__ import annotations

from pathlib import Path

from headrace_engine.config import ModelFormat, RuntimeConfig
from headrace_engine.engine.config.backend_fields import check_storage
from headrace_engine.engine.config.hubs import check_hub
from headrace_engine.engine.config.model_paths import ModelLocation, check_prefix, locate
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.engine.config.parallel_fields import check_shares
from headrace_engine.engine.config.runtime import check_config
from headrace_engine.errors import BadModel, InvalidArgument
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.files import ModelFiles
from headrace_engine.models.loaders.hub import is_name


def open_files(config: RuntimeConfig, options: EngineOptions) -> ModelFiles:
    """Open the files at a config's path.

    Raises:
        BadModel: they are missing, damaged or of an unsupported kind.
        InvalidArgument: a field that says where they are is wrong.
    """
    check_hub(config.hub, options)
    check_prefix(config.file_prefix)
    location = locate(config.model_path, options)
    if not options.allow_hub and not _exists(location.path):
        raise BadModel(f"{config.model_path}: no such file or directory, and hub access is disabled (--no-hub)")
    return _open_location(location, config)


def check_files(config: RuntimeConfig, files: ModelFiles, options: EngineOptions) -> None:
    """Refuse a config that does not fit the files, or files that no config fits.

    Raises:
        BadModel, InvalidArgument: naming what does not fit.
    """
    check_length(config, files)
    check_storage(config, files, options.backend)
    check_shares(config, files)


def check_length(config: RuntimeConfig, files: ModelFiles) -> None:
    """Refuse a config's max_length above the model's, and a model too short for a prompt and a token.

    Raises:
        BadModel, InvalidArgument: naming both lengths.
    """
    limit = files.spec.max_length
    if limit < 2:
        raise BadModel(f"{files.path.name}: the model takes sequences of {limit} token(s); at least 2 are needed")
    if config.max_length is not None and config.max_length > limit:
        latent = files.spec.latent
        hint = "" if latent is not None and latent.scores_scaled_by else "; set rope_scaling to extend it"
        text = f"= {config.max_length} exceeds the model's maximum of {limit} tokens{hint}"
        raise InvalidArgument.field("config.max_length", text)


def check_model(config: RuntimeConfig, options: EngineOptions) -> None:
    """Refuse a model that could not be installed, by its config and, if it is on this host, its files' headers.

    Raises:
        BadModel: there is no such path or hub name, or no loader reads its files.
        InvalidArgument: the config is wrong.
    """
    check_config(config, options.backend)
    if not options.allow_hub or not is_name(config.model_path) or _exists(config.model_path):
        check_files(config, open_files(config, options), options)


def _open_location(location: ModelLocation, config: RuntimeConfig) -> ModelFiles:
    try:
        return open_model(
            location.path,
            hub_only=location.is_hub_name,
            format=config.format or ModelFormat.AUTO,
            file_prefix=config.file_prefix,
            revision=config.revision,
            hub=config.hub,
            rope_scaling=config.rope_scaling,
        )
    except OSError as error:
        raise _unreadable(config.model_path, error) from error


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except OSError as error:  # the name is too long, or a directory is not readable
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> BadModel:
    return BadModel(f"{error.strerror or error}: {path}")  # Errors shorten a long path themselves.
