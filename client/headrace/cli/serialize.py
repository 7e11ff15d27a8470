"""The command `serialize`: write a model in Headrace's own format."""

from __future__ import annotations

import argparse

from headrace.cli.options import read_options
from headrace.cli.output import note, say
from headrace.cli.progress import in_words, status
from headrace.cli.words import sentence
from headrace.client import Client
from headrace.model_types import SerializedModel, SerializeStep

FIELDS = frozenset({"file_prefix", "revision", "hub", "dtype", "weight_quant", "weight_quant_group_size"})
"""Fields that -o accepts."""

COLUMNS = "stdout receives tab-separated columns: engine, path, file_prefix."


def serialize(client: Client, options: argparse.Namespace) -> int:
    """Write a model on engines while showing the progress, and print where each of them has it."""
    fields = read_options(options.option, FIELDS)
    steps = client.serialize_model(
        options.model,
        options.path,
        output_dir=options.output_dir,
        skip_if_exists=options.skip_if_exists,
        engine_ids=options.engine,
        **fields,
    )
    failed = False
    with steps, Shown(options.model) as shown:
        for step in steps:
            if step.failure is not None:
                failed = True
                note(f"{options.model} on {step.engine}: {sentence(step.failure, options.model)}", "red")
            elif step.model is not None:
                say(f"{step.engine}\t{step.model.path}\t{step.model.file_prefix}\n")
                note(_advice(options.model, step.model))
            else:
                shown.show(step)
    return 1 if failed else 0


def _advice(name: str, model: SerializedModel) -> str:
    state = "written" if model.written else "there already"
    return f"{name} is {state}: headrace install {name} {model.path} -o file_prefix={model.file_prefix}"


class Shown:
    """The progress of engines: in one line of a terminal, and by phases elsewhere."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._printed: dict[str, str] = {}
        self._status = status(name)

    def __enter__(self) -> Shown:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, step: SerializeStep) -> None:
        """Show how far an engine is."""
        if step.progress is None:
            return
        phase = str(step.progress.phase)
        if self._status is not None:
            self._printed[step.engine] = f"{step.engine}  {in_words(step.progress)}"
            self._status.update("  ".join([self._name, *self._printed.values()]))
        elif self._printed.get(step.engine) != phase:
            self._printed[step.engine] = phase
            note(f"{self._name}  {step.engine}  {phase.lower().replace('_', ' ')}")
