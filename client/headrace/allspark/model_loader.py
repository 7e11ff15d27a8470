"""Loaders of models in Hugging Face's format and in Headrace's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from headrace._values.refusals import invalid
from headrace.allspark.di_config import read_config, section
from headrace.allspark.generation_config import ASGenerationConfigBuilder
from headrace.allspark.llm import LLM
from headrace.allspark.quantization import quant_fields
from headrace.allspark.runtime_config import AsModelConfig, AsModelRuntimeConfigBuilder, TargetDevice

if TYPE_CHECKING:
    from headrace.allspark.engine import Engine

__all__ = ["LLM", "DashInferModel", "HuggingFaceModel"]

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
        self._files = {"model_path": self._path, "dtype": user_set_data_type}

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
        """Check the model's files on the engine, whatever `in_memory_serialize` is. Weights are quantized when loaded.

        Args:
            engine: engine that reads the files.
            enable_quant: quantize weights to 8-bit integers, or as the dict says.
            weight_only_quant: compute in the model's dtype; otherwise in 8-bit integers too.
            customized_quant_config: as `headrace.allspark.quantization.quant_fields`.

        Raises:
            HeadraceError: as `headrace.Client.inspect_model`.
        """
        fields = quant_fields(enable_quant, weight_only_quant, customized_quant_config)
        self._describe(engine)
        self._files = {**self._files, **fields}
        return self

    def serialize_to_path(
        self,
        engine: Engine,
        model_output_dir: str = "",
        enable_quant: bool = False,
        weight_only_quant: bool = False,
        customized_quant_config: Mapping[str, Any] | None = None,
        skip_if_exists: bool = False,
    ) -> Self:
        """Raise NotImplementedError: the engine does not write its own format yet."""
        if not model_output_dir:
            raise ValueError("model_output_dir is empty")
        raise NotImplementedError("serialize_to_path is not supported yet: call serialize_to_memory")

    def free_memory_serialize_file(self) -> Self:
        """Return the loader: there is no temporary file."""
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


class DashInferModel(LLM):
    """A model that `serialize_to_path` wrote: NAME.asparam and NAME.asmodel in a directory on the engine's host.

    Args:
        pretrain_model_name_or_path: the directory.
        pretrain_model_name: base name of the files; "/" becomes "_".
        config_file_path: DashInfer's config, a YAML file on this host, with the sections runtime_config and
            generation_config: what the builders start from.
        config_content: the same as text, instead of the file.
        engine: engine that reads the files.

    Raises:
        ValueError: the path or the name is empty, or the config is no YAML.
        OSError: the config cannot be read.
        ImportError: there is a config, but not the package PyYAML.
    """

    def __init__(
        self,
        pretrain_model_name_or_path: str,
        pretrain_model_name: str = "model",
        config_file_path: str | Path | None = None,
        config_content: str | None = None,
        *,
        engine: Engine | None = None,
    ) -> None:
        super().__init__(pretrain_model_name_or_path, pretrain_model_name, engine)
        prefix = pretrain_model_name.replace("/", "_")
        self._files = {"model_path": self._path, "file_prefix": prefix, "format": "HEADRACE"}
        given = config_file_path is not None or config_content is not None
        self._config = read_config(config_content, config_file_path) if given else {}

    def load_model(self) -> Self:
        """Ask the engine for the model's description, if an engine is known."""
        return self.read_model_config()

    def create_reference_runtime_config_builder(
        self,
        engine_model_name: str = "",
        device_type: TargetDevice | str | None = None,
        device_ids: Sequence[int] = (),
        max_batch: int | None = None,
        max_context_length: int = -1,
    ) -> AsModelRuntimeConfigBuilder:
        """Return a builder of the model's install, with the YAML's runtime_config and what is given here.

        Args:
            engine_model_name: name for all later calls; "": the YAML's, else that of the files.
            device_type: kind of compute device; None: the YAML's, else the engine's default.
            device_ids: numbers of the devices.
            max_batch: maximum number of sequences in a step; None: the YAML's, else the engine's default.
            max_context_length: maximum length of a sequence in tokens; -1: the YAML's, else the model's.

        Raises:
            TypeError, InvalidRequestError: the YAML has a field that is unknown, invalid or not supported.
        """
        builder = AsModelRuntimeConfigBuilder().update_from_dict(self._config.get("runtime_config", {}))
        fields = {**builder.build(), **({"max_length": max_context_length} if max_context_length >= 0 else {})}
        self._installed_name = engine_model_name or fields.get("name") or self._name
        builder.model_name(self._installed_name).update(self._files).update(fields)
        if device_type is not None:
            builder.compute_unit(device_type, device_ids)
        return builder if max_batch is None else builder.max_batch(max_batch)

    def create_reference_generation_config_builder(
        self,
        runtimeConfig: AsModelConfig | None = None,  # noqa: N803 - DashInfer's name
    ) -> ASGenerationConfigBuilder:
        """Return a builder with the YAML's generation_config, else the model's, with the tighter maximum length.

        Raises:
            RuntimeError: no engine is known, and the YAML has no generation_config.
            TypeError, InvalidRequestError: the YAML has a field that is unknown, invalid or not supported.
        """
        if "generation_config" not in self._config:
            return self._generation_builder(runtimeConfig)
        builder = ASGenerationConfigBuilder().update(section(self._config, "generation_config"))
        lengths = [builder.build().get("max_length"), runtimeConfig.engine_max_length if runtimeConfig else None]
        return builder.update({"max_length": min((length for length in lengths if length), default=None)})
