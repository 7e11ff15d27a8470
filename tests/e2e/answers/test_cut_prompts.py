"""An answer that goes on from half a character has the whole of it, in its text and in what a stop finds."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace import Client
from headrace._transport.transport import open_transport
from support.models.tiny_models import make_tiny_llama
from support.models.tiny_tokenizer import tiny_tokenizer


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a5_a_request_completes_the_character_of_its_prompt(tmp_path: Path, missing: int) -> None:
    ids = tiny_tokenizer().encode("Hello world 🌶").ids
    transport = open_transport("inprocess:", {"backend": "cpu"})
    with Client(transport) as client:
        client.install_model("m", path=str(make_tiny_llama(tmp_path)), num_threads=1)
        client.start_model("m")
        prompt, forced = ids[:-missing], ids[-missing:]
        text = ""
        for token_id in forced:  # As a caller goes on whose answers were cut inside a character.
            handle, queue = client.start_request("m", ids=prompt, allowed_token_ids=[token_id], max_new_tokens=1)
            text = "".join(element.text for element in queue)
            client.release_request(handle)
            prompt = [*prompt, token_id]
        assert text == "🌶"
    transport.close()
