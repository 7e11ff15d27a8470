"""Loaders of models in Hugging Face's format, and of those that were written from them."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from headrace._values.refusals import invalid
from headrace.allspark.dashinfer_model import DashInferModel
from headrace.allspark.generation_config import ASGenerationConfigBuilder
from headrace.allspark.llm import LLM
from headrace.allspark.quantization import quant_fields
from headrace.allspark.runtime_config import AsModelConfig, AsModelRuntimeConfigBuilder, TargetDevice

if TYPE_CHECKING:
    from headrace.allspark.engine import Engine

__all__ = ["LLM", "DashInferModel", "HuggingFaceModel"]

logger = logging.getLogger("headrace.allspark")

_DTYPES = ("float32", "bfloat16", "float16")


class HuggingFaceModel(LLM):
    """A Hugging Face model directory or hub name on the engine's host. Its methods can be chained.

        model = HuggingFaceModel("/models/SmolLM2-135M-Instruct", "smol").load_model().serialize_to_memory(engine)

    Args:
        pretrain_model_name_or_path: directory or hub name on the engine's host.
        pretrain_model_name: name of the model.
        in_memory_serialize: what `serialize` does: True, as `serialize_to_memory`; False, as `serialize_to_path`.
        user_set_data_type: "float32", "bfloat16" or "float16", to compute in; None: the model's own.
        trust_remote_code: only False: no code of models is run.
        engine: engine that reads the files; None: the one that `serialize` names.

    Raises:
        ValueError: the path or the name is empty.
        InvalidRequestError: another data type, or trust_remote_code.
    """

    refused: ClassVar[Mapping[str, str]] = {
        "init_quantization": "pass enable_quant, weight_only_quant and customized_quant_config to serialize",
        "set_rope_scale_method": 'set it in the runtime config: update({"rope_scaling": {"type": …, "factor": …}})',
        "export_model_diconfig": "the written files have the model's config",
        "get_as_quant_config_and_weight_process": "pass customized_quant_config to serialize",
    }

    def __init__(
        self,
        pretrain_model_name_or_path: str,
        pretrain_model_name: str,
        in_memory_serialize: bool = False,
        user_set_data_type: str | None = None,
        trust_remote_code: bool = False,
        *,
        engine: Engine | None = None,
    ) -> None:
        super().__init__(pretrain_model_name_or_path, pretrain_model_name, engine)
        if trust_remote_code:
            raise invalid("trust_remote_code", trust_remote_code, "False: no code of models is run")
        if user_set_data_type is not None and user_set_data_type not in _DTYPES:
            raise invalid("user_set_data_type", user_set_data_type, f"one of {', '.join(_DTYPES)}")
        self._in_memory = in_memory_serialize
        self._in_memory_name: str | None = None
        self._file_name = pretrain_model_name.replace("/", "_")
        self._dtype = user_set_data_type
        self._files = {"model_path": self._path, "dtype": self._dtype}

    def load_model(
        self, override_data_type: str | None = None, direct_load: bool = False, load_format: str = "auto"
    ) -> Self:
        """Ask the engine for the model's description, if an engine is known; the engine loads it at `start_model`.

        Args:
            override_data_type: replaces user_set_data_type.
            direct_load: has no effect: the engine always reads the files without transformers.
            load_format: "auto" or "safetensors".
        """
        if load_format not in ("auto", "safetensors"):
            raise invalid("load_format", load_format, '"auto" or "safetensors"; pickled weights run code when read')
        if override_data_type is not None:
            self._dtype = override_data_type
            self._files = {**self._files, "dtype": override_data_type}
        return self.read_model_config()

    def serialize(
        self,
        engine: Engine,
        model_output_dir: str = "",
        enable_quant: bool = False,
        weight_only_quant: bool = False,
        customized_quant_config: Mapping[str, Any] | None = None,
    ) -> Self:
        """Call `serialize_to_memory` or `serialize_to_path`, as `in_memory_serialize` says.

        Raises:
            ValueError: model_output_dir is missing.
        """
        quant = (enable_quant, weight_only_quant, customized_quant_config)
        if self._in_memory:
            return self.serialize_to_memory(engine, *quant)
        return self.serialize_to_path(engine, model_output_dir, *quant)

    def serialize_to_memory(
        self,
        engine: Engine,
        enable_quant: bool = False,
        weight_only_quant: bool = False,
        customized_quant_config: Mapping[str, Any] | None = None,
    ) -> Self:
        """Have the engine write the model into its memory, whatever `in_memory_serialize` is.

        The copy ends with the engine, or after `free_memory_serialize_file`.

        Args:
            engine: engine that writes.
            enable_quant: quantize weights to 8-bit integers, or as the dict says.
            weight_only_quant: compute in the model's dtype; otherwise in 8-bit integers too.
            customized_quant_config: as `headrace.allspark.quantization.quant_fields`.

        Raises:
            HeadraceError: as `headrace.Client.serialize_model`.
        """
        self._in_memory_name = f"{self._file_name}-{uuid.uuid4().hex[:8]}"
        quant = quant_fields(enable_quant, weight_only_quant, customized_quant_config)
        return self._serialize(engine, self._in_memory_name, quant)

    def serialize_to_path(
        self,
        engine: Engine,
        model_output_dir: str = "",
        enable_quant: bool = False,
        weight_only_quant: bool = False,
        customized_quant_config: Mapping[str, Any] | None = None,
        skip_if_exists: bool = False,
    ) -> Self:
        """Have the engine write the model as NAME.asparam and NAME.asmodel; "/" in the name becomes "_".

        Args:
            engine: engine that writes.
            model_output_dir: folder on the engine's host; a server allows folders by its option --write-root.
            enable_quant, weight_only_quant, customized_quant_config: as `serialize_to_memory`.
            skip_if_exists: keep files that were made of the same model in the same way.

        Raises:
            ValueError: model_output_dir is empty.
            HeadraceError: as `headrace.Client.serialize_model`.
        """
        if not model_output_dir:
            raise ValueError("model_output_dir is empty")
        quant = quant_fields(enable_quant, weight_only_quant, customized_quant_config)
        options = {"output_dir": model_output_dir, "skip_if_exists": skip_if_exists}
        return self._serialize(engine, self._file_name, quant, **options)

    def _serialize(self, engine: Engine, name: str, quant: Mapping[str, Any], **options: Any) -> Self:
        """Have the model written, and take the written files from now on."""
        stored = {field: value for field, value in quant.items() if field != "activation_quant"}
        steps = engine.client.serialize_model(name, self._path, **{"dtype": self._dtype, **stored, **options})
        written = None
        for step in steps:
            if step.failure is not None:
                logger.warning("%s on engine %s: %s", name, step.engine, step.failure)
            written = step.model or written
        assert written is not None  # Without a written model the iterator has raised.
        # What computes in integers needs to know that the weights are.
        computing = quant if "activation_quant" in quant else {}
        self._files = {
            "model_path": written.path,
            "file_prefix": written.file_prefix,
            "format": "HEADRACE",
            "dtype": self._dtype,
            **computing,
        }
        self._describe(engine)
        return self

    def free_memory_serialize_file(self) -> Self:
        """Free the copy in memory, once no installed model was made of it."""
        if self._in_memory_name is not None:
            self._known_engine().client.free_serialized_model(self._in_memory_name)
            self._in_memory_name = None
        return self

    def create_reference_runtime_config_builder(
        self,
        engine_model_name: str,
        device_type: TargetDevice | str,
        device_ids: Sequence[int],
        max_batch: int,
        max_context_length: int = -1,
    ) -> AsModelRuntimeConfigBuilder:
        """Return a builder of the model's install, with its maximum length.

        Args:
            engine_model_name: name for all later calls; unique in one engine.
            device_type: kind of compute device.
            device_ids: numbers of the devices.
            max_batch: maximum number of sequences in a step.
            max_context_length: maximum length of a sequence in tokens; -1: the model's.

        Raises:
            RuntimeError: no engine is known.
            HeadraceError: as `headrace.Client.inspect_model`.
        """
        builder = self._runtime_builder(engine_model_name, max_context_length)
        return builder.compute_unit(device_type, device_ids).max_batch(max_batch)

    def create_reference_generation_config_builder(
        self,
        runtimeConfig: AsModelConfig | None = None,  # noqa: N803 - DashInfer's name
    ) -> ASGenerationConfigBuilder:
        """Return a builder with the model's generation config, and with the tighter one of both maximum lengths.

        Raises:
            RuntimeError: no engine is known.
            HeadraceError: as `headrace.Client.inspect_model`.
        """
        return self._generation_builder(runtimeConfig)
