"""The room that the logs of one owner may take on one model."""

from __future__ import annotations

import pytest
from headrace_engine.engine.results.budget import SEQUENCE_BYTES, TOKEN_BYTES, Need, ResultBudget, log_bytes
from headrace_engine.engine.results.token_details import DetailOptions
from headrace_engine.errors import InvalidArgument, ResourceExhausted
from headrace_engine.result_types import FinishReason
from support.engine.rig import NAME, Rig

OF = {"max_new_tokens": 10}
SIZE = log_bytes(10)


def taken(rig: Rig, owner: str = "") -> int:
    return rig.engine._registry.budget.taken((owner, NAME))


async def test_a_start_reserves_the_worst_case_and_the_end_returns_it(rig: Rig) -> None:
    await rig.run()
    accepted = await rig.start(config=OF)
    assert taken(rig) == SIZE == SEQUENCE_BYTES + 10 * TOKEN_BYTES
    key = rig.added().key
    rig.core.step({key: 1})
    assert taken(rig) == SIZE
    rig.core.step({key: 1}, ended={key: FinishReason.EOS})
    assert taken(rig) == log_bytes(2)
    await rig.engine.release_request(accepted.handle, "")
    await rig.engine.release_request(accepted.handle, "")
    assert taken(rig) == 0
    assert not rig.engine._registry.budget._taken


async def test_a_request_released_while_it_runs_gives_all_back(rig: Rig) -> None:
    await rig.run()
    accepted = await rig.start(config=OF)
    await rig.engine.release_request(accepted.handle, "")
    assert taken(rig) == 0


async def test_what_exceeds_the_limit_is_refused_with_the_numbers(rig: Rig) -> None:
    await rig.run(max_result_bytes=2 * SIZE + 100)
    for _ in range(2):
        await rig.start(config=OF)
    with pytest.raises(ResourceExhausted, match=f"{2 * SIZE} are taken and this request may need {SIZE}") as caught:
        await rig.start(config=OF)
    assert caught.value.reason == "RESULTS_FULL"
    assert caught.value.retry_after is not None
    assert f"may take {2 * SIZE + 100} bytes (max_result_bytes)" in caught.value.message
    assert len(rig.core.added) == 2
    assert taken(rig) == 2 * SIZE


async def test_each_owner_and_each_model_has_its_own(rig: Rig) -> None:
    await rig.run(max_result_bytes=SIZE)
    await rig.run("other", max_result_bytes=SIZE)
    await rig.start(config=OF, owner="a")
    await rig.start(config=OF, owner="b")
    await rig.start(config=OF, owner="a", model_name="other")
    with pytest.raises(ResourceExhausted):
        await rig.start(config=OF, owner="a")


async def test_a_lease_that_ran_out_makes_room(rig: Rig) -> None:
    await rig.run(max_result_bytes=SIZE)
    await rig.start(config=OF)
    rig.pass_time(60)
    assert taken(rig) == SEQUENCE_BYTES
    rig.pass_time(600)
    await rig.start(config=OF)


async def test_a_refused_start_takes_nothing(rig: Rig) -> None:
    await rig.run()
    with pytest.raises(InvalidArgument):
        await rig.start((999,), config=OF)
    assert taken(rig) == 0


async def test_what_never_fits_is_no_matter_of_waiting(rig: Rig) -> None:
    await rig.run(max_result_bytes=log_bytes(9))
    with pytest.raises(InvalidArgument, match="ask for at most 9 tokens") as caught:
        await rig.start(config=OF)
    assert caught.value.violations[0].field == "config.max_new_tokens"


def test_what_was_settled_grows_no_more() -> None:
    budget = ResultBudget()
    (reservation,) = budget.reserve(("", "m"), Need(5), 10_000, lambda: 1.0).logs
    reservation.settle(7)
    assert budget.taken(("", "m")) == log_bytes(5)
    reservation.settle(1)
    reservation.settle(5)
    assert budget.taken(("", "m")) == log_bytes(1)


def test_most_likely_ids_take_room_of_their_own() -> None:
    budget = ResultBudget()
    asked = DetailOptions(True, top_count=20)
    (reservation,) = budget.reserve(("", "m"), Need(5, options=asked), 10_000, lambda: 1.0).logs
    assert budget.taken(("", "m")) == log_bytes(5, asked) == log_bytes(5) + 5 * 20 * 8
    reservation.settle(1)
    assert budget.taken(("", "m")) == log_bytes(1, asked)
    with pytest.raises(InvalidArgument, match="ask for at most 3 tokens"):
        budget.reserve(("", "m"), Need(100, options=asked), log_bytes(3, asked), lambda: 1.0)


def test_vectors_and_the_prompt_take_room_of_their_own() -> None:
    budget, asked = ResultBudget(), DetailOptions(hidden_size=64)
    reserved = budget.reserve(("", "m"), Need(5, 2, asked, prompt_bytes=96), 20_000, lambda: 1.0)
    assert log_bytes(5, asked) == log_bytes(5) + 5 * 2 * 64 * 4
    assert budget.taken(("", "m")) == 2 * log_bytes(5, asked) + 96
    for log in reserved.logs:
        log.give_back()
    assert budget.taken(("", "m")) == 96
    reserved.prompt.give_back()
    with pytest.raises(InvalidArgument, match="ask for at most 4 tokens"):
        budget.reserve(("", "m"), Need(5, 2, asked, prompt_bytes=96), 2 * log_bytes(5, asked) + 95, lambda: 1.0)


class TestWhatIsToBlame:
    """The field whose value makes a request larger than all results may be."""

    VECTORS, TOPS = DetailOptions(hidden_size=64), DetailOptions(logprobs=True, top_count=20)

    @staticmethod
    def refusal(need: Need, limit: int) -> tuple[str, str]:
        with pytest.raises(InvalidArgument) as caught:
            ResultBudget().reserve(("", "m"), need, limit, lambda: 1.0)
        (violation,) = caught.value.violations
        assert f"may need {need.bytes} bytes" in violation.description
        assert f"max_result_bytes is {limit}" in violation.description
        return violation.field, violation.description

    def test_the_prompt_alone_is_too_much(self) -> None:
        need = Need(5, prompt_bytes=8 * 21 * 4000, prompt_tops=20)
        field, text = self.refusal(need, 100_000)
        assert field == "config.prompt_logprobs"
        assert text.startswith("= 20 takes 672000 bytes: ")
        assert text.endswith("; leave it out")

    @pytest.mark.parametrize(
        ("asked", "field", "value"),
        [(VECTORS, "enable_tensors_from_model_inference", "True"), (TOPS, "top_logprobs", "20")],
    )
    def test_details_of_tokens_are_too_much(self, asked: DetailOptions, field: str, value: str) -> None:
        """They are left out, or come for fewer tokens."""
        name, text = self.refusal(Need(100, options=asked), log_bytes(100))
        assert name == f"config.{field}"
        assert text.startswith(f"= {value} takes {100 * asked.kept_bytes} bytes: ")
        assert f"ask for at most {Need(100, options=asked).most(log_bytes(100))} tokens" in text

    def test_of_several_what_takes_most(self) -> None:
        need = Need(10, 2, self.VECTORS, prompt_bytes=8 * 2000)
        assert self.refusal(need, need.bytes - 1)[0] == "config.prompt_logprobs"
        need = Need(40, 2, self.VECTORS, prompt_bytes=8 * 2000)
        assert self.refusal(need, need.bytes - 1)[0] == "config.enable_tensors_from_model_inference"

    def test_too_much_even_without_them_is_blamed_on_tokens(self) -> None:
        asked = Need(100, options=self.VECTORS)
        field, text = self.refusal(asked, log_bytes(3, self.VECTORS))
        assert (field, text.rpartition("; ")[2]) == ("config.max_new_tokens", "ask for at most 3 tokens")

    @pytest.mark.parametrize("name", ["n", "best_of"])
    def test_sequences_of_which_not_one_could_have_a_token(self, name: str) -> None:
        field, text = self.refusal(Need(5, 64, count_field=name), 10 * log_bytes(1))
        assert field == f"config.{name}"
        assert text.startswith("= 64: ")
        assert text.endswith("; ask for at most 10, of one token each")

    def test_a_model_that_has_no_room_for_anything(self) -> None:
        for count in (1, 2):
            field, text = self.refusal(Need(5, count), log_bytes(1) - 1)
            assert field == "config.max_new_tokens"
            assert "install the model with more" in text

    async def test_a_request_tells_it_by_its_own_fields(self, rig: Rig) -> None:
        await rig.run(max_result_bytes=SIZE)
        for config, blamed in (
            ({"prompt_logprobs": 20}, "prompt_logprobs"),
            ({"logprobs": True, "top_logprobs": 3}, "top_logprobs"),
            ({"enable_tensors_from_model_inference": True}, "enable_tensors_from_model_inference"),
            ({"n": 2}, "n"),
            ({"best_of": 2}, "best_of"),
        ):
            with pytest.raises(InvalidArgument) as caught:
                await rig.start(config={**OF, **config})
            assert caught.value.violations[0].field == f"config.{blamed}"
        assert taken(rig) == 0


async def test_a_start_that_fails_once_all_is_reserved_gives_it_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no sequence can be made")

    await rig.run()
    monkeypatch.setattr("headrace_engine.engine.requests.admission.new_sequences", fail)
    with pytest.raises(RuntimeError):
        await rig.start()
    assert not rig.engine._registry.budget._taken
