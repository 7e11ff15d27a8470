"""StartRequest: what is accepted, and who waits."""

from __future__ import annotations

import hashlib
import shutil
import struct
from pathlib import Path

import pytest
from headrace_engine.chat_types import Chat, ChatMessage
from headrace_engine.errors import (
    ResourceExhausted,
)
from headrace_engine.ipc.commands import AddSequence
from headrace_engine.ipc.frames import encode
from headrace_engine.result_types import FinishReason
from support.clocks.clock import settle
from support.engine.rig import NAME, Rig
from support.models.json_files import read_json, write_json
from support.models.vocabularies import byte_level


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
