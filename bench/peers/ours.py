"""Headrace as a contestant: an engine service and a gateway, real processes on loopback, read by the client here."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace import Client, ResultQueue
from headrace.types import GeneratedElements
from support.servers.processes import ANY_ROOT, Server, gateway_server, running

from bench.common.models import BenchModels
from bench.peers.contestant import Contestant, Form
from bench.peers.workloads import Answer, Prompts

BATCH, LENGTH = 16, 704

_INT4_32 = {"weight_quant": "INT4", "weight_quant_group_size": 32}
_INT4 = {"weight_quant": "INT4"}
_INT4_64 = {"weight_quant": "INT4", "weight_quant_group_size": 64}
_INT8 = {"weight_quant": "INT8"}
_CODES = {"activation_quant": "INT8"}


@dataclass(frozen=True)
class OurForm:
    """A format of ours.

    Attributes:
        source: kind of the files, "gguf" or "hf".
        settings: fields of the install.
    """

    form: Form
    source: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model_name(self) -> str:
        """Name under which it is installed."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.form.name.lower())


def _pair(name: str, bits: int, source: str, settings: Mapping[str, Any]) -> tuple[OurForm, OurForm]:
    """Return a format with activations in full precision, and in 8 bits."""
    return (
        OurForm(Form(name, bits), source, settings),
        OurForm(Form(f"{name}, activations INT8", bits, codes=True), source, {**settings, **_CODES}),
    )


FORMS: Mapping[str, tuple[OurForm, ...]] = {
    "smol": (
        *_pair("Q4_1", 4, "gguf", {}),
        *_pair("INT4 g64", 4, "hf", _INT4_64),
        *_pair("INT8", 8, "hf", _INT8),
        OurForm(Form("BF16", 16), "hf"),
    ),
    "qwen": (
        OurForm(Form("INT4 g32", 4), "hf", _INT4_32),
        *_pair("INT4 g128", 4, "hf", _INT4),
        *_pair("INT8", 8, "hf", _INT8),
        OurForm(Form("BF16", 16), "hf"),
    ),
}
"""Formats by model. Q4_1 is the file of SmolLM2's package; the others are quantized from bfloat16 at load."""


class Headrace(Contestant):
    """One installed format, used through a client.

    Attributes:
        weight_bytes: bytes of its weights, as reported by the engine.
    """

    who = "headrace"

    def __init__(self, client: Client, model: str, form: OurForm, weight_bytes: int) -> None:
        self._client, self._name = client, form.model_name
        self.model, self.form, self.weight_bytes = model, form.form, weight_bytes

    def answer(self, prompts: Prompts, new: int) -> Answer:
        """See Contestant."""
        return ask(self._client, self._name, prompts, new)


def ask(client: Client, name: str, prompts: Prompts, new: int) -> Answer:
    """Send one model all prompts at once, and read the answers."""
    began = time.perf_counter()
    started = [
        client.start_request(name, ids=prompt, max_new_tokens=new, ignore_eos=True, do_sample=False)
        for prompt in prompts
    ]
    arrivals = _read([queue for _, queue in started], began)
    for handle, _ in started:
        client.release_request(handle)
    return Answer(arrivals)


def _read(queues: list[ResultQueue], began: float) -> list[list[tuple[float, int]]]:
    """Wait at the first queue that has not ended, then read the others without waiting: a step's ids come together."""
    arrivals: list[list[tuple[float, int]]] = [[] for _ in queues]
    unended = list(range(len(queues)))

    def take(number: int, elements: GeneratedElements | None) -> None:
        if elements is not None and elements.ids_from_generate:
            arrivals[number].append((time.perf_counter() - began, len(elements.ids_from_generate)))

    while unended:
        lead, *others = unended
        elements = queues[lead].Get()
        take(lead, elements)
        for number in others:
            take(number, queues[number].GetNoWait())
        if elements is None:
            unended.remove(lead)
    return arrivals


@dataclass
class Service:
    """Servers, and a client of the gateway."""

    engine: Server
    gateway: Server
    client: Client

    def install(self, models: BenchModels, model: str, form: OurForm, **settings: Any) -> Headrace:
        """Install a format and start it; see `install`."""
        return install(self.client, models, model, form, **settings)


def install(client: Client, models: BenchModels, model: str, form: OurForm, **settings: Any) -> Headrace:
    """Install a format and start it.

    Args:
        **settings: fields of the install besides those of the format.
    """
    path = files_of(models, model, form)
    fields = {"max_batch": BATCH, "max_length": LENGTH, "enable_prefix_cache": False, **form.settings, **settings}
    client.install_model(form.model_name, path=str(path), **fields)
    (info,) = client.start_model(form.model_name)
    assert info.effective is not None
    return Headrace(client, model, form, info.effective.weight_bytes)


@contextmanager
def service(*engine: str) -> Iterator[Service]:
    """Run an engine without models, a gateway and a client.

    Args:
        engine: the engine's program; default: headrace-engine.
    """
    program = engine or ("-m", "headrace_engine")
    with (
        running(*program, "--name", "e1", "--listen", "127.0.0.1:0", *ANY_ROOT) as server,
        gateway_server({"e1": server.address}) as gateway,
        Client(gateway.address) as client,
    ):
        yield Service(server, gateway, client)


def files_of(models: BenchModels, model: str, form: OurForm) -> Path:
    """Return the path of a format's weights."""
    return models.packaged if form.source == "gguf" else models.folder(model)
