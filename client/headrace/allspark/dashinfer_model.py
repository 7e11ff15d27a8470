"""The loader of models in Headrace's own format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from headrace.allspark.di_config import read_config, section
from headrace.allspark.generation_config import ASGenerationConfigBuilder
from headrace.allspark.llm import LLM
from headrace.allspark.runtime_config import AsModelConfig, AsModelRuntimeConfigBuilder, TargetDevice

if TYPE_CHECKING:
    from headrace.allspark.engine import Engine


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
