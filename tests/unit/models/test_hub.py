"""Hub names: fetched through the hub's own client from a hub on the loopback interface."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import huggingface_hub
import pytest
from headrace_engine.config import ModelFormat
from headrace_engine.errors import BadModel, InvalidArgument
from headrace_engine.models.catalogue import open_model
from unit.models.conftest import Copy

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "tiny/model"
REVISIONS = [[], ["revision", "main"], ["revision", "v1"], ["revision", COMMIT]]


class Hub(ThreadingHTTPServer):
    """Serves one repository, and remembers which files were asked for."""

    daemon_threads = True

    def __init__(self, repository: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(HubHandler, repository))
        self.downloads: list[str] = []
        self.works = True

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class HubHandler(SimpleHTTPRequestHandler):
    """The two kinds of paths that the hub's client asks for: what a repository holds, and its files."""

    server: Hub

    def __init__(self, repository: Path, *args: object) -> None:
        self.repository = repository
        super().__init__(*args)  # type: ignore[arg-type]

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *args: object) -> None:
        """Silent."""

    def _answer(self, *, with_body: bool) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        is_ours = NAME in "/".join(parts[:4])
        match parts:
            case _ if not self.server.works:
                self._send(503, b"", with_body)
            case ["api", "models", _, _, *revision] if is_ours and revision in REVISIONS:
                self._send(200, self._description(), with_body)
            case ["api", "models", _, _, "tree", _] if is_ours:
                self._send(200, self._listing(), with_body)
            case [_, _, "resolve", _, name] if is_ours and (self.repository / name).is_file():
                self.server.downloads += [name] if with_body else []
                self._send(200, (self.repository / name).read_bytes(), with_body)
            case _:
                self._send(404, b"", with_body)

    def _description(self) -> bytes:
        names = [{"rfilename": path.name} for path in sorted(self.repository.iterdir())]
        return json.dumps({"id": NAME, "sha": COMMIT, "siblings": names, "private": False, "tags": []}).encode()

    def _listing(self) -> bytes:
        files = [
            {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": COMMIT}
            for path in sorted(self.repository.iterdir())
        ]
        return json.dumps(files).encode()

    def _send(self, status: int, content: bytes, with_body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hash((self.path, len(content))) & 0xFFFFFFFF:08x}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        if with_body:
            self.wfile.write(content)


@pytest.fixture
def repository(copy: Copy, sharded: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What the hub holds; the client's cache is empty."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return copy(sharded)


@pytest.fixture
def hub(repository: Path) -> Iterator[Hub]:
    server = Hub(repository)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()
    huggingface_hub.close_session()


def test_a_name_is_fetched_and_opened(hub: Hub, repository: Path) -> None:
    files = open_model(NAME, hub=hub.address)
    assert files.revision == COMMIT
    assert files.tensors.keys() == open_model(str(repository)).tensors.keys()
    assert open_model(str(files.path)) == files


def test_only_what_the_model_needs_is_fetched(hub: Hub, repository: Path) -> None:
    (repository / "pytorch_model.bin").write_bytes(b"\0")
    (repository / "consolidated.safetensors").write_bytes(b"\0")
    open_model(NAME, revision="v1", hub=hub.address)
    assert {"pytorch_model.bin", "consolidated.safetensors"}.isdisjoint(hub.downloads)
    assert {"config.json", "tokenizer.json", "model.safetensors.index.json"} <= set(hub.downloads)


def test_one_of_several_gguf_files_is_fetched(hub: Hub, repository: Path, llama_gguf: Path) -> None:
    for path in repository.iterdir():
        path.unlink()
    for name in ("tiny-q4.gguf", "tiny-q8.gguf"):
        shutil.copy(llama_gguf, repository / name)
    with pytest.raises(BadModel, match="more than one GGUF file"):
        open_model(NAME, hub=hub.address)
    files = open_model(NAME, file_prefix="tiny-q8", hub=hub.address)
    assert (files.format, files.path.name, files.revision) == (ModelFormat.GGUF, "tiny-q8.gguf", COMMIT)
    assert hub.downloads == ["tiny-q8.gguf"]


def test_bc127_a_repository_of_pickles_is_refused_unfetched(hub: Hub, repository: Path) -> None:
    for path in repository.glob("*.safetensors"):
        path.unlink()
    (repository / "pytorch_model.bin").write_bytes(b"\0")
    with pytest.raises(BadModel, match=r"pytorch_model\.bin"):
        open_model(NAME, hub=hub.address)
    assert hub.downloads == []


def test_what_was_fetched_before_opens_without_the_hub(hub: Hub) -> None:
    first = open_model(NAME, revision=COMMIT, hub=hub.address)
    hub.works = False
    assert open_model(NAME, revision=COMMIT, hub=hub.address) == first


@pytest.mark.parametrize(("name", "revision"), [("tiny/absent", ""), (NAME, "no-such-branch")])
def test_what_the_hub_does_not_have_is_refused_with_advice(hub: Hub, name: str, revision: str) -> None:
    with pytest.raises(BadModel, match=f"{name}: no such file or directory, and the hub .* local directory"):
        open_model(name, revision=revision, hub=hub.address)


def test_a_hub_that_cannot_be_reached_is_refused_with_advice(hub: Hub) -> None:
    hub.works = False
    with pytest.raises(BadModel, match="HF_TOKEN"):
        open_model(NAME, hub=hub.address)


def test_a_hub_must_be_a_url() -> None:
    with pytest.raises(InvalidArgument) as caught:
        open_model(NAME, hub="modelscope")
    assert (caught.value.violations[0].field, caught.value.reason) == ("config.hub", "NOT_SUPPORTED")


@pytest.mark.parametrize("path", ["models/", "/absent/model", "./model", "a/b/c", "gpt2", "~nobody/model"])
def test_what_looks_like_a_path_is_not_asked_of_a_hub(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # The working directory may well have a folder of such a name.
    with pytest.raises(BadModel, match=r"no such file or directory$"):
        open_model(path)
