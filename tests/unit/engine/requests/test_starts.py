"""StartRequest: what is accepted, what is refused, and who waits."""

from __future__ import annotations

import hashlib
import shutil
import struct
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from headrace_engine.commands import AddSequence, CoreCommand, EndSequence
from headrace_engine.engine.requests import admission
from headrace_engine.engine.work.pools import INLINE_SIZE
from headrace_engine.errors import (
    InvalidArgument,
    ResourceExhausted,
)
from headrace_engine.ipc import encode
from headrace_engine.request_types import Chat, ChatMessage, ResumedSequence
from headrace_engine.result_types import FinishReason
from support.clocks.clock import settle
from support.engine.rig import NAME, Rig
from support.models.tiny_models import read_json, write_json
from support.models.vocabularies import byte_level

LONG = "Hello world. " * (INLINE_SIZE // 10)
"""Tokenised in a thread."""


async def refused(rig: Rig, *args: Any, **fields: Any) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        await rig.start(*args, **fields)
    assert rig.core.added == []
    assert rig.engine.list_requests("")[0] == []
    return caught.value


@pytest.mark.parametrize("what", ["PromptLog", "new_sequences", "message", "_hash", "Request", "begin"])
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


async def test_what_all_sequences_have_in_common_is_sent_once(rig: Rig) -> None:
    """So is it to the next core, if this one is lost."""
    core = await rig.run()
    words = tuple(tuple(5 + (number + place) % 300 for place in range(16)) for number in range(4_000))
    await rig.start(config={"bad_words_ids": words, "n": 64})
    core.die()
    await settle()
    for each in rig.launcher.cores:
        assert [added.rules and len(added.rules.bad_words) for added in each.added] == [4_000] * 64
        assert sum(len(encode(command)) for command in each.commands) < 1.1 * len(encode(each.added[0]))
    assert len(rig.launcher.cores) == 2


class TestAccepted:
    async def test_the_answer_says_what_became_of_it(self, rig: Rig) -> None:
        await rig.run()
        accepted = await rig.start((5, 6, 7), config={"temperature": 0.5, "seed": 9, "max_new_tokens": 4})
        engine, instance, number = accepted.handle.split("/")
        assert (engine, instance) == ("e1", rig.engine.instance_id)
        assert len(bytes.fromhex(number)) == 16
        assert (accepted.model_name, accepted.seed, accepted.prompt_token_count) == (NAME, 9, 3)
        assert accepted.prompt_hash == hashlib.sha256(struct.pack("<3I", 5, 6, 7)).hexdigest()
        assert (accepted.joined, accepted.handover, accepted.waiting_ahead, accepted.warnings) == (False, 0, 0, ())
        config = accepted.effective_config
        assert config is not None
        assert (config.temperature, config.seed, config.max_new_tokens, config.max_length) == (0.5, 9, 4, 64)
        assert config.eos_token_id == (2, 0)

    async def test_the_core_is_told_all_of_it(self, rig: Rig) -> None:
        await rig.run()
        config = {
            "temperature": 0.5,
            "top_k": 3,
            "seed": 9,
            "logprobs": True,
            "max_new_tokens": 4,
            "min_new_tokens": 2,
            "priority": -7,
            "use_prefix_cache": False,
            "cache_salt": "tenant",
        }
        accepted = await rig.start((5, 6, 7), config=config)
        added = rig.added()
        assert accepted.effective_config is not None
        assert added == AddSequence(
            key=added.key,
            prompt=(5, 6, 7),
            sampling=added.sampling,
            max_new=4,
            eos_ids=(2, 0),
            min_new=2,
            priority=-7,
            use_prefix_cache=False,
            cache_salt="tenant",
        )
        sampling = added.sampling
        assert (sampling.temperature, sampling.top_k, sampling.seed, sampling.logprobs) == (0.5, 3, 9, True)

    async def test_keys_are_never_used_twice(self, rig: Rig) -> None:
        core = await rig.run()
        for _ in range(3):
            await rig.start()
        await rig.engine.stop_model(NAME, no_wait=True)
        for key in {added.key for added in core.added}:
            core.step(ended={key: FinishReason.EOS})
        await rig.engine.stop_model(NAME)
        await rig.engine.start_model(NAME)
        await rig.start()
        assert len({added.key for launched in rig.launcher.cores for added in launched.added}) == 4

    async def test_handles_and_drawn_ids_are_all_different(self, rig: Rig) -> None:
        await rig.run()
        accepted = [await rig.start() for _ in range(20)]
        assert len({each.handle for each in accepted}) == 20
        assert len({each.request_id for each in accepted}) == 20
        assert all(each.request_id for each in accepted)

    async def test_the_three_forms_of_a_prompt(self, rig: Rig) -> None:
        await rig.run()
        chat = Chat((ChatMessage("user", "Hello"),))
        rendered = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
        for prompt, ids in (
            ("Hello world", byte_level().encode("Hello world").ids),
            ((5, 6), [5, 6]),
            (chat, byte_level().encode(rendered).ids),
        ):
            accepted = await rig.start(prompt)
            assert list(rig.added().prompt) == ids
            assert accepted.prompt_token_count == len(ids)

    async def test_bc063_one_token_and_only_spaces_are_prompts(self, rig: Rig) -> None:
        await rig.run()
        await rig.start((0,))
        await rig.start("   ")
        assert all(added.prompt for added in rig.core.added)

    async def test_a_default_seed_is_for_requests_without_one(self, rig: Rig) -> None:
        await rig.run(default_seed=0)
        assert (await rig.start()).seed == 0
        assert (await rig.start(config={"seed": 5})).seed == 5

    async def test_text_keeps_special_tokens_where_asked(self, rig: Rig) -> None:
        core = await rig.run()
        shown = await rig.start(config={"skip_special_tokens": False})
        hidden = await rig.start()
        for added in core.added:
            core.step({added.key: 1})
        for accepted, text in ((shown, "<|im_start|>"), (hidden, "")):
            elements = await rig.unread(accepted.handle)
            assert elements is not None
            assert (elements.token_ids, elements.text) == ([1], text)

    async def test_what_the_model_asks_in_vain_is_a_warning(self, rig: Rig, tmp_path: Path) -> None:
        copy = shutil.copytree(rig.model_path, tmp_path / "copy")
        config = read_json(copy / "generation_config.json")
        write_json(copy / "generation_config.json", {**config, "typical_p": 0.9, "repetition_penalty": 1.1})
        await rig.run(model_path=str(copy))
        accepted = await rig.start()
        assert [warning.field for warning in accepted.warnings] == ["config.typical_p"]
        assert accepted.effective_config is not None
        assert accepted.effective_config.repetition_penalty == 1.1


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


class TestQueue:
    async def test_waiting_ahead_counts_who_was_in_no_step_yet(self, rig: Rig) -> None:
        core = await rig.run()
        assert [(await rig.start()).waiting_ahead for _ in range(3)] == [0, 1, 2]
        core.step(scheduled={core.added[0].key: 0, core.added[1].key: 0})
        assert (await rig.start()).waiting_ahead == 1

    async def test_beyond_max_waiting_a_start_is_refused_with_a_time(self, rig: Rig) -> None:
        core = await rig.run(max_batch=2, max_waiting=3)
        accepted = [await rig.start(caller=caller) for caller in "aabbc"]
        core.step(scheduled={added.key: 0 for added in core.added[:2]})
        with pytest.raises(ResourceExhausted) as caught:
            await rig.start(caller="d")
        error = caught.value
        assert (error.reason, error.waiting_ahead, error.max_waiting) == ("QUEUE_FULL", 3, 3)
        assert error.retry_after is not None
        assert 0.1 <= error.retry_after <= 60
        assert error.message == f"3 requests are waiting (max_waiting 3). Try again in {error.retry_after:.1f} s"
        await rig.engine.stop_request(accepted[-1].handle, "")
        await rig.start()

    async def test_of_zero_may_wait_none_but_those_for_whom_there_is_room(self, rig: Rig) -> None:
        core = await rig.run(max_batch=2, max_waiting=0)
        for _ in range(2):
            await rig.start()
        core.step(scheduled={added.key: 0 for added in core.added})
        with pytest.raises(ResourceExhausted):
            await rig.start()
        core.step(ended={core.added[0].key: FinishReason.EOS})
        await rig.start()

    async def test_the_time_follows_how_long_requests_take(self, rig: Rig) -> None:
        core = await rig.run(max_batch=1, max_waiting=0)
        for _ in range(64):
            await rig.start()
            rig.clock.advance(20)
            core.step(ended={rig.added().key: FinishReason.EOS})
        await rig.start()
        with pytest.raises(ResourceExhausted) as caught:
            await rig.start()
        assert caught.value.retry_after == pytest.approx(20, rel=0.01)

    async def test_the_time_is_that_of_running_and_not_that_of_waiting(self, rig: Rig) -> None:
        core = await rig.run(max_batch=1, max_waiting=0)
        await rig.start()
        rig.clock.advance(50)
        core.step(scheduled={rig.added().key: 0})
        rig.clock.advance(4)
        core.step(ended={rig.added().key: FinishReason.EOS})
        await rig.start()
        with pytest.raises(ResourceExhausted) as caught:
            await rig.start()
        assert caught.value.retry_after == pytest.approx(4)
