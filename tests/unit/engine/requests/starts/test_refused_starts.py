"""StartRequest: what is refused, and what a start that fails leaves behind."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from headrace_engine.chat_types import Chat, ChatMessage
from headrace_engine.engine.requests import admission
from headrace_engine.errors import (
    InvalidArgument,
)
from headrace_engine.ipc.commands import CoreCommand, EndSequence
from headrace_engine.request_types import ResumedSequence
from headrace_engine.result_types import FinishReason
from support.engine.rig import NAME, Rig


async def refused(rig: Rig, *args: Any, **fields: Any) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        await rig.start(*args, **fields)
    assert rig.core.added == []
    assert rig.engine.list_requests("")[0] == []
    return caught.value


@pytest.mark.parametrize("what", ["PromptLog", "new_sequences", "common_command", "_hash", "Request", "begin"])
async def test_a_start_that_fails_keeps_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Whatever fails once its bytes are reserved, they are free again and there is no request."""
    await rig.run()
    with monkeypatch.context() as patch:
        patch.setattr(admission, what, Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            await rig.start((5, 6, 7), config={"prompt_logprobs": 1, "n": 2})
    assert rig.engine._registry.budget.taken(("", NAME)) == 0
    assert rig.engine.list_requests("")[0] == []
    await rig.start((5, 6, 7), config={"prompt_logprobs": 1})


@pytest.mark.parametrize("config", [{"n": 3}, {"best_of": 3}])
@pytest.mark.parametrize("sent", range(3))
async def test_a_start_that_fails_halfway_ends_what_was_sent(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], sent: int
) -> None:
    """The core is told to end it, and its key is free again."""
    core = await rig.run()
    send = core.send

    def fail(message: CoreCommand) -> None:
        if len(core.added) == sent and not isinstance(message, EndSequence):
            raise MemoryError
        send(message)

    with monkeypatch.context() as patch:
        patch.setattr(core, "send", fail)
        with pytest.raises(MemoryError):
            await rig.start(config=config, request_id="r1")
    assert set(core.ended) >= {added.key for added in core.added}
    assert len(core.added) == sent
    assert rig.engine._registry.budget.taken(("", NAME)) == 0
    assert rig.engine.list_requests("")[0] == []
    assert rig.engine.engine_stats(NAME)[0].waiting == 0
    await rig.start(config=config, request_id="r1")
    assert len(core.added) == sent + 3


class TestRefused:
    async def test_bc063_an_empty_prompt(self, rig: Rig) -> None:
        await rig.run()
        for prompt in ((), ""):
            assert (await refused(rig, prompt)).violations[0].field == "prompt"

    @pytest.mark.parametrize("wrong", [-1, 384, 2**31 - 1, 2**32 - 1])
    async def test_bc064_an_id_outside_the_vocabulary_fails_alone(self, rig: Rig, wrong: int) -> None:
        core = await rig.run()
        running = await rig.start()
        with pytest.raises(InvalidArgument, match=f"holds {wrong}"):
            await rig.start((5, wrong))
        assert len(core.added) == 1
        core.step({rig.added().key: 41}, ended={rig.added().key: FinishReason.EOS})
        elements = await rig.unread(running.handle)
        assert elements is not None
        assert elements.token_ids == [41]

    @pytest.mark.parametrize(("length", "accepted"), [(63, True), (64, False), (65, False)])
    async def test_bc028_the_longest_prompt_yields_one_token(self, rig: Rig, length: int, accepted: bool) -> None:
        """The core chose 64 as the longest sequence."""
        await rig.run()
        if accepted:
            await rig.start((5,) * length)
            assert rig.added().max_new == 1
            return
        for _ in range(2):
            error = await refused(rig, (5,) * length)
            assert error.reason == "PROMPT_TOO_LONG"
            assert f'has {length} tokens; model "smol" takes at most 63 (max_length 64)' in error.message

    async def test_a_text_with_too_many_tokens(self, rig: Rig) -> None:
        await rig.run()
        error = await refused(rig, "x y " * 40)
        assert error.reason == "PROMPT_TOO_LONG"
        assert "takes at most 63" in error.message

    @pytest.mark.parametrize("adds", [True, False])
    async def test_add_special_tokens_is_for_text_only(self, rig: Rig, adds: bool) -> None:
        await rig.run()
        for prompt in ((5,), Chat((ChatMessage("user", "Hello"),))):
            error = await refused(rig, prompt, add_special_tokens=adds)
            assert error.violations[0].field == "add_special_tokens"
        await rig.start("Hello", add_special_tokens=adds)

    async def test_an_owner_of_more_than_256_characters(self, rig: Rig) -> None:
        await rig.run()
        error = await refused(rig, owner="o" * 257)
        assert error.violations[0].field == "owner"
        assert "has 257 characters; allowed: at most 256" in error.message
        await rig.start(owner="ü" * 256)

    async def test_a_cache_salt_of_more_than_1024_bytes(self, rig: Rig) -> None:
        await rig.run()
        error = await refused(rig, config={"cache_salt": "ü" * 513})
        assert error.violations[0].field == "config.cache_salt"
        assert "has 1026 bytes; allowed: at most 1024" in error.message
        await rig.start(config={"cache_salt": "ü" * 512})

    async def test_too_many_ids_are_refused_by_their_number_alone(self, rig: Rig) -> None:
        class Uncounted(tuple[int, ...]):
            def __iter__(self) -> Any:
                raise AssertionError("the ids were looked at")

            def __len__(self) -> int:
                return 10**9

        await rig.run()
        assert (await refused(rig, prompt=Uncounted())).reason == "PROMPT_TOO_LONG"
        resume = (ResumedSequence(0, Uncounted()),)
        error = await refused(rig, request_id="r1", handover=1, resume=resume)
        assert error.violations[0].field == "resume.sequences[0].delivered_ids"

    async def test_a_request_id_of_more_than_128_characters(self, rig: Rig) -> None:
        await rig.run()
        error = await refused(rig, request_id="r" * 129)
        assert error.violations[0].field == "request_id"
        assert "129" in error.message
        assert (await rig.start(request_id="ü" * 128)).request_id == "ü" * 128

    @pytest.mark.parametrize(
        ("config", "reason"),
        [
            ({"temperature": -1.0}, "INVALID_FIELD"),
            ({"n": 3, "best_of": 2}, "INVALID_FIELD"),
            ({"eos_token_id": (384,)}, "INVALID_FIELD"),
        ],
    )
    async def test_a_config_that_does_not_hold(self, rig: Rig, config: dict[str, Any], reason: str) -> None:
        await rig.run()
        assert (await refused(rig, config=config)).reason == reason
