"""Logits processors in real processes: a core that is killed, a file that is wrong, and the page's examples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from headrace import Client, InvalidRequestError, StateError
from support.models.processor_files import by_history, processor_arguments, write_processors
from support.models.processor_page import blocks, example
from support.servers.gate import Gate
from support.servers.processes import Server, core_of, engine_server, gated_engine_server, gateway_server

LENGTH = 60


@pytest.fixture(scope="module")
def gateway(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """In front of an engine that has the page's examples."""
    page = tmp_path_factory.mktemp("page")
    files = {"steer": example("steer.py", page), "cuda": example("steer.cu", page)}
    with (
        engine_server("e1", *processor_arguments(files), "--drain-limit", "1") as engine,
        gateway_server({"e1": engine.address}) as gateway,
    ):
        with Client(gateway.address) as client:
            serve(client, tiny, "smol")
        yield gateway


def serve(client: Client, tiny: Path, name: str = "tiny") -> None:
    client.install_model(name, path=str(tiny), max_batch=4, max_length=512, num_threads=1)
    client.start_model(name)


def test_a_killed_core_changes_no_token(tiny: Path, tmp_path: Path) -> None:
    """The next core is given the same processors, and calls them with the ids that the first one drew."""
    arguments = processor_arguments(write_processors(tmp_path))
    with gated_engine_server("e1", Gate(tmp_path / "gate"), *arguments) as server, Client(server.address) as client:
        gate = Gate(tmp_path / "gate")
        serve(client, tiny)
        gate.shut()
        calls = [{"name": "by-history"}]
        queues = [
            client.start_request(
                "tiny", ids=[1, 2, n], max_new_tokens=LENGTH, ignore_eos=True, do_sample=False, logits_processors=calls
            )[1]  # type: ignore[call-overload]
            for n in range(6)
        ]
        gate.let(LENGTH // 3)
        core_of(server).kill()
        gate.open()
        server.wait_event("core_restarted", model="tiny")
        for number, queue in enumerate(queues):
            ids = [token for elements in queue for token in elements.ids_from_generate]
            assert ids == by_history([1, 2, number], LENGTH)


def test_a_file_that_is_wrong_lets_the_model_fail_with_its_words(tiny: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("def process(logits, ids, arguments:\n")
    with (
        engine_server("e1", "--logits-processor", f"broken={broken}") as server,
        Client(server.address) as client,
    ):
        client.install_model("tiny", path=str(tiny), num_threads=1)
        with pytest.raises(StateError, match=r"'broken' \(.*broken.py\): SyntaxError") as failure:
            client.start_model("tiny")
        assert failure.value.reason == "BAD_PROCESSOR"
        broken.write_text("def process(logits, ids, arguments): ...\n")
        client.install_model("tiny", path=str(tiny), num_threads=1)
        client.start_model("tiny")


def test_the_page_s_processor_does_what_it_says(gateway: Server) -> None:
    with Client(gateway.address) as client:
        fields = {"ids": [1, 2, 3], "max_new_tokens": 40, "ignore_eos": True, "do_sample": False}
        steered = [{"name": "steer", "arguments": [1e4, 11, 12]}]
        handle, queue = client.start_request("smol", **fields, logits_processors=steered)  # type: ignore[call-overload]
        ids = [token for elements in queue for token in elements.ids_from_generate]
        assert ids in ([11, 12] * 20, [12, 11] * 20)
        client.release_request(handle)


def test_what_the_backend_cannot_run_is_refused_with_the_reason(gateway: Server) -> None:
    with Client(gateway.address) as client:
        (info,) = client.get_model("smol")
        assert info.effective is not None
        assert info.effective.logits_processors == ("steer",)
        words = r'"cuda": steer.cu is for CUDA devices, and the cpu backend computes; allowed: steer'
        with pytest.raises(InvalidRequestError, match=words):
            client.start_request("smol", ids=[1], logits_processors=[{"name": "cuda"}])


def test_the_page_s_client_runs(gateway: Server, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = [block for block in blocks("python") if "Client(" in block]
    assert len(examples) == 2
    for block in examples:
        text = block.replace("localhost:7070", gateway.address).replace("/models/smol.gguf", str(tiny))
        text = text.replace('path="', 'num_threads=1, path="')
        exec(compile(text, "logits-processors.md", "exec"), {"__name__": "page"})
        assert capsys.readouterr().out
