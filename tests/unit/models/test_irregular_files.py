"""What lies in the place of a model's file and is none is refused at once, and not waited for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from headrace_engine.errors import BadModel
from headrace_engine.models.catalogue import open_model
from headrace_engine.models.tokenizer import load_tokenizer
from support.models.damage import refusal
from unit.models.conftest import Copy

WEIGHTS = "model.safetensors"

Spoil = Callable[[Path], None]


def make_socket(path: Path) -> None:
    """Bind a socket there."""
    here = os.getcwd()
    os.chdir(path.parent)  # Such names are short.
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def link_to_device(path: Path) -> None:
    """Let it lead to a device that never ends."""
    path.symlink_to("/dev/zero")


def test_an_empty_directory_is_called_empty(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=rf"{tmp_path.name}: no model: the directory is empty"):
        open_model(str(tmp_path))


class TestOtherThanFiles:
    """None of these is opened: one that waits for a writer would keep this test for ever."""

    @pytest.mark.parametrize(
        ("spoil", "kind"),
        [(os.mkfifo, "a FIFO"), (make_socket, "a socket"), (link_to_device, "a device"), (os.mkdir, "a directory")],
    )
    @pytest.mark.parametrize(
        "name",
        [
            "config.json",
            "generation_config.json",
            "tokenizer_config.json",
            "chat_template.jinja",
            WEIGHTS,
            f"{WEIGHTS}.index.json",
        ],
    )
    def test_f1_what_is_no_regular_file_is_refused(
        self, copy: Copy, llama: Path, name: str, spoil: Spoil, kind: str
    ) -> None:
        path = copy(llama)
        (path / name).unlink(missing_ok=True)
        if name.endswith("index.json"):
            (path / WEIGHTS).unlink()
        spoil(path / name)
        assert refusal(path) == f"{name}: cannot be read: not a regular file but {kind}"

    @pytest.mark.parametrize("name", ["tokenizer.json", "special_tokens_map.json"])
    def test_f1_files_of_the_tokenizer_are_looked_at_too(self, copy: Copy, llama: Path, name: str) -> None:
        path = copy(llama)
        (path / name).unlink(missing_ok=True)
        os.mkfifo(path / name)
        with pytest.raises(BadModel, match=f"^{name}: cannot be read: not a regular file"):
            load_tokenizer(open_model(str(path)))

    @pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "added_tokens.json", "tokenizer.model"])
    def test_f1_files_that_a_library_opens_are_looked_at_before(self, copy: Copy, llama: Path, name: str) -> None:
        path = copy(llama)
        (path / "tokenizer.json").rename(path / "vocab.json")
        (path / name).unlink(missing_ok=True)
        os.mkfifo(path / name)
        with pytest.raises(BadModel, match=f"^{name}: cannot be read: not a regular file"):
            load_tokenizer(open_model(str(path)))

    def test_f1_a_path_that_is_a_fifo_is_refused(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "f")
        assert refusal(tmp_path / "f") == "f: cannot be read: not a regular file but a FIFO"
        os.mkfifo(tmp_path / "x.gguf")
        assert refusal(tmp_path) == "x.gguf: cannot be read: not a regular file but a FIFO"

    def test_f1_a_shard_that_is_a_fifo_is_refused(self, copy: Copy, sharded: Path) -> None:
        path = copy(sharded)
        shard = sorted(path.glob("*.safetensors"))[1]
        shard.unlink()
        os.mkfifo(shard)
        assert refusal(path) == f"{shard.name}: cannot be read: not a regular file but a FIFO"

    def test_f1_a_link_to_nowhere_is_not_taken_for_absent(self, copy: Copy, llama: Path) -> None:
        """A cache that lost a file would otherwise serve the model with other defaults than its own."""
        path = copy(llama)
        (path / "generation_config.json").unlink()
        (path / "generation_config.json").symlink_to(path / "lost")
        assert refusal(path) == "generation_config.json: cannot be read: No such file or directory"
