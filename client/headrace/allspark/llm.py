"""The base of model loaders: what an engine says of a model's files, and the configs that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from headrace._base.refused_names import RefusedNames
from headrace.allspark.generation_config import ASGenerationConfigBuilder
from headrace.allspark.runtime_config import AsModelConfig, AsModelRuntimeConfigBuilder
from headrace.allspark.tokenizer import Tokenizer
from headrace.model_types import ModelDescription

if TYPE_CHECKING:
    from headrace.allspark.engine import Engine


class LLM(RefusedNames):
    """A model's files, where the engine can read them.

    The engine reads them, not this object, which asks it with the first call that names an engine. Methods that
    need what the engine said raise RuntimeError before.

    Args:
        path: directory, file or hub name on the engine's host, as for `headrace.Client.install_model`.
        name: name of the model.
        engine: engine that reads the files; None: the one that `serialize` names.

    Raises:
        ValueError: the path or the name is empty.
    """

    def __init__(self, path: str, name: str, engine: Engine | None = None) -> None:
        for field, value in (("path", path), ("name", name)):
            if not value:
                raise ValueError(f"the model's {field} is empty")
        self._path, self._name = path, name
        self._engine = engine
        self._installed_name = name
        self._description: ModelDescription | None = None
        self._files: Mapping[str, Any] = {"model_path": path}

    def read_model_config(self) -> Self:
        """Ask the engine for the model's description, if an engine is known."""
        if self._engine is not None and self._description is None:
            self._describe(self._engine)
        return self

    def init_tokenizer(self) -> Self:
        """Return the loader: the engine has the tokenizer once the model is installed."""
        return self

    def get_tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the installed model.

        Raises:
            RuntimeError: no engine is known.
        """
        return Tokenizer(self._known_engine().client, self._installed_name)

    def get_model_config(self) -> Mapping[str, Any]:
        """Return the model's config.

        Raises:
            RuntimeError: no engine is known.
            HeadraceError: as `headrace.Client.inspect_model`.
        """
        return self._described().config

    def get_model_context_length(self) -> int:
        """Return the maximum sequence length of the model, in tokens.

        Raises:
            RuntimeError: no engine is known.
            HeadraceError: as `headrace.Client.inspect_model`.
        """
        return self._described().max_length

    def free_model(self) -> Self:
        """Return the loader, which holds nothing of the model."""
        return self

    def _known_engine(self) -> Engine:
        if self._engine is None:
            raise RuntimeError(
                f"the engine of model {self._name!r} is not known: call serialize(engine), or pass engine="
            )
        return self._engine

    def _described(self) -> ModelDescription:
        if self._description is None:
            self._describe(self._known_engine())
        assert self._description is not None
        return self._description

    def _describe(self, engine: Engine) -> None:
        """Ask the engine for the description of the files."""
        names = {"model_path": "path", "file_prefix": "file_prefix", "format": "format"}
        given = {names[field]: value for field, value in self._files.items() if field in names}
        self._engine, self._description = engine, engine.client.inspect_model(**given)

    def _runtime_builder(self, name: str, max_length: int) -> AsModelRuntimeConfigBuilder:
        """Return a builder with the model's files and length."""
        self._installed_name = name
        longest = self._described().max_length if max_length < 0 else max_length
        return AsModelRuntimeConfigBuilder().model_name(name).update(self._files).max_length(longest)

    def _generation_builder(self, config: AsModelConfig | None) -> ASGenerationConfigBuilder:
        """Return a builder with the model's generation config, and with the tighter one of both maximum lengths."""
        described = self._described()
        builder = ASGenerationConfigBuilder().update(described.generation_config)
        if config is None:
            return builder
        return builder.max_length(min(described.max_length, config.engine_max_length or described.max_length))
