"""The engine of DashInfer's API: models and requests, over one client."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from headrace._base.closing import Closing
from headrace._base.refused_names import RefusedNames
from headrace._streaming.result_queue import ResultQueue
from headrace._values.refusals import invalid
from headrace.allspark.generation_config import ASGenerationConfigBuilder, MultiMediaInfo
from headrace.allspark.model_loader import LLM
from headrace.allspark.runtime_config import AsCacheMode, AsModelConfig, AsModelRuntimeConfigBuilder, TargetDevice
from headrace.allspark.status import AsStatus, failed, outcome, request_outcome
from headrace.compat.local import open_client
from headrace.errors import HeadraceError
from headrace.model_types import ModelInfo
from headrace.types import GeneratedElements
from headrace.types import GenerateStatus as GenerateRequestStatus

__all__ = [
    "ASGenerationConfigBuilder",
    "AsCacheMode",
    "AsModelConfig",
    "AsModelRuntimeConfigBuilder",
    "AsStatus",
    "Engine",
    "GenerateRequestStatus",
    "GeneratedElements",
    "MultiMediaInfo",
    "ResultQueue",
    "TargetDevice",
]

Started = tuple[AsStatus, str | None, ResultQueue | None]
"""Status, handle and queue of a started request; without success no handle and no queue."""

logger = logging.getLogger("headrace.allspark")

_REQUEST = "start_request_text and start_request_ids take prompt and config"


class Engine(RefusedNames, Closing):
    """An engine in this process, or a server.

    Every call but `install_model` returns an `AsStatus`; an error is logged and is the status' `error`. What only a
    mistake in the program can cause, such as an unknown keyword, raises. As a context manager it closes on exit.

    Args:
        address: "host:port" of an engine or a gateway, as for `headrace.Client`; None: a new engine in this process
            (package headrace-engine), whose models and requests end with the process or with `close`.
        **options: further arguments of `headrace.Client`.

    Attributes:
        client: the client that carries all calls, for what this class has no method for.

    Raises:
        ValueError, TypeError, ImportError: as `headrace.Client`.
        UnavailableError: there is no server at the address.
    """

    refused: ClassVar[Mapping[str, str]] = {
        "get_no_wait": "call GetNoWait() of the queue",
        "get_wait": "call Get() of the queue",
        "get_request_status": "call GenerateStatus() of the queue",
        "load_lora": "call engine.client.load_adapter(model, name, path)",
        "unload_lora": "call engine.client.unload_adapter(model, name)",
        "get_op_profiling_info": "engine.client.engine_stats() has the times of steps",
        "get_as_engine_stat": "call engine.client.engine_stats(model_name)",
        "unload_model_device_memory": "stop_model frees the device's memory",
        "reload_model_device_memory": "start_model loads the model again",
        "unload_model_from_device": "stop_model frees the device's memory",
        "reload_model_to_device": "start_model loads the model again",
        "start_request": _REQUEST,
        "build_model_from_config_struct": "call install_model",
        "build_model_from_as_model_config": "call install_model",
        "serialize_model_from_torch": "call serialize of HuggingFaceModel",
        "set_matmul_precision": "dtype in the config of the install sets the precision",
        "get_model_information": "call engine.client.get_model(model_name)",
        "get_file_information": "call engine.client.inspect_model(path)",
        "get_version": "call get_version_full()",
        "print_gen_cfg": "engine.client.get_request(handle).request.effective_config has all values in use",
    }

    def __init__(self, address: str | None = None, **options: Any) -> None:
        self.client = open_client(address, **options)
        try:
            self._version = self.client.server_info().build
        except HeadraceError:
            self.client.close()
            raise
        logger.info("AllSpark Init with Version: %s", self._version)

    def get_version_full(self) -> str:
        """Return version and commit of the server."""
        return self._version

    def install_model(self, as_model_config_struct: Mapping[str, Any]) -> AsStatus:
        """Install a model: check its config and read its files. Its state is INITIAL afterwards.

        Args:
            as_model_config_struct: what `AsModelRuntimeConfigBuilder.build` returns.

        Raises:
            HeadraceError: as `headrace.Client.install_model`.
            TypeError: the config has an unknown field, or lacks name or path.
        """
        config = dict(as_model_config_struct)
        missing = [name for name in ("name", "path") if not config.get(name)]
        if missing:
            setter = {"name": "model_name", "path": "model_dir"}[missing[0]]
            raise TypeError(f"the config has no {missing[0]}: set it with {setter}")
        _log_failures(self.client.install_model(**config))
        return AsStatus.ALLSPARK_SUCCESS

    def start_model(self, model_name: str) -> AsStatus:
        """Load an installed model onto its devices and warm it up. Its state is RUNNING afterwards."""
        return outcome("start_model", lambda: _log_failures(self.client.start_model(model_name)))

    def stop_model(self, model_name: str) -> AsStatus:
        """Let the model's requests finish, up to its drain_limit, and free its device memory.

        The model stays installed: `start_model` starts it again, `release_model` frees the rest.
        """
        return outcome("stop_model", lambda: _log_failures(self.client.stop_model(model_name)))

    def release_model(self, model_name: str) -> AsStatus:
        """Free everything of a stopped model, including its name."""
        return outcome("release_model", lambda: _log_failures(self.client.release_model(model_name)))

    def start_request_text(
        self,
        model_name: str,
        model: LLM | None,
        input_str_or_array: str | Sequence[str],
        generate_config_builder: ASGenerationConfigBuilder | Mapping[str, Any],
    ) -> Started:
        """Start a request with a text, which gets no chat template, and return without waiting for tokens.

        Args:
            model_name: name of a running model.
            model: not needed: the engine has the model's tokenizer.
            input_str_or_array: the text, or a list with one text.
            generate_config_builder: the config, built or not.

        Returns:
            The status, and with success the handle and the queue of results.

        Raises:
            InvalidRequestError: there is not exactly one text.
            TypeError: an unknown keyword.
        """
        text = _one_text(input_str_or_array)
        return self._start("start_request_text", model_name, {"text": text, **_fields(generate_config_builder)})

    def start_request_ids(
        self,
        model_name: str,
        model: LLM | None,
        input_ids: Sequence[int],
        generate_config_builder: ASGenerationConfigBuilder | Mapping[str, Any],
    ) -> Started:
        """Start a request with token ids, and return without waiting for tokens.

        Args:
            model_name: name of a running model.
            model: not needed.
            input_ids: n token ids: a list, or an array or tensor of shape (n,) or (1, n).
            generate_config_builder: the config, built or not.

        Returns:
            The status, and with success the handle and the queue of results.

        Raises:
            TypeError: an unknown keyword.
        """
        return self._start("start_request_ids", model_name, {"ids": input_ids, **_fields(generate_config_builder)})

    def stop_request(self, model_name: str, request_handle: str | None) -> AsStatus:
        """End a request; what it generated stays readable. `model_name` is not needed: the handle is unique."""
        return request_outcome("stop_request", request_handle, self.client.stop_request)

    def release_request(self, model_name: str, request_handle: str | None) -> AsStatus:
        """End a request and free everything of it. `model_name` is not needed: the handle is unique."""
        return request_outcome("release_request", request_handle, self.client.release_request)

    def sync_request(self, model_name: str, request_handle: str | None) -> AsStatus:
        """Wait until a request has ended; without a handle, until all requests to the model have.

        With a handle `model_name` is not needed.
        """
        if request_handle is None:
            return outcome("sync_request", lambda: self.client.sync_request(model=model_name))
        return request_outcome("sync_request", request_handle, self.client.sync_request)

    def close(self) -> None:
        """Close the client; an engine in this process ends with all that it runs."""
        self.client.close()

    def __repr__(self) -> str:
        return f"Engine(version={self._version!r})"

    def _start(self, verb: str, model_name: str, arguments: Mapping[str, Any]) -> Started:
        try:
            handle, queue = self.client.start_request(model_name, **arguments)
        except HeadraceError as error:
            return failed(verb, error), None, None
        return AsStatus.ALLSPARK_SUCCESS, handle, queue


def _log_failures(models: Iterable[ModelInfo]) -> None:
    """Log on which engines of several a call failed."""
    for model in models:
        if model.failure is not None:
            logger.warning("%s on engine %s: %s", model.model_name, model.engine, model.failure)


def _fields(config: ASGenerationConfigBuilder | Mapping[str, Any]) -> Mapping[str, Any]:
    return config if isinstance(config, Mapping) else config.build()


def _one_text(given: str | Sequence[str]) -> str:
    if isinstance(given, str):
        return given
    texts = list(given)
    if len(texts) != 1:
        raise invalid("input_str_or_array", texts, "one text: call start_request_text once for each")
    return texts[0]
