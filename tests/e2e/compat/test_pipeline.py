"""The pipeline of LMDeploy's API: prompts, configs, streams, and what becomes of its requests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from headrace import Client, InvalidRequestError, ModelState, pipeline
from headrace.lmdeploy import ChatTemplateConfig, GenerationConfig, Pipeline, Response, TurbomindEngineConfig
from support.clocks.waiting import wait_until
from support.servers.books import release_all
from support.servers.processes import Server

GREEDY = GenerationConfig(max_new_tokens=12, ignore_eos=True)
USER = [{"role": "user", "content": "Hello river"}]


@pytest.fixture(scope="module")
def shared(tiny: Path) -> Iterator[Pipeline]:
    config = TurbomindEngineConfig(max_batch_size=2, session_len=256)
    with pipeline(str(tiny), backend_config=config) as pipe:
        yield pipe


@pytest.fixture
def pipe(shared: Pipeline) -> Iterator[Pipeline]:
    """A pipeline in this process. Afterwards all of its requests are released."""
    yield shared
    wait_until(lambda: shared.client.list_requests() == [], "a request is left")
    release_all(shared.client)


def one(pipe: Pipeline, prompt: object, **arguments: object) -> Response:
    answer = pipe(prompt, **arguments)  # type: ignore[arg-type]
    assert isinstance(answer, Response)
    return answer


def many(pipe: Pipeline, prompts: object, **arguments: object) -> list[Response]:
    answers = pipe(prompts, **arguments)  # type: ignore[arg-type]
    assert isinstance(answers, list)
    return answers


class TestPrompts:
    def test_a_string_is_the_message_of_a_user(self, pipe: Pipeline) -> None:
        text = "".join(pipe.client.generate(pipe.model_name, messages=USER, **GREEDY.build()))
        assert one(pipe, "Hello river", gen_config=GREEDY).text == text
        assert one(pipe, USER, gen_config=GREEDY).text == text
        assert [each.text for each in many(pipe, ["Hello river", USER], gen_config=GREEDY)] == [text, text]

    def test_without_preprocessing_it_is_sent_as_it_is(self, pipe: Pipeline) -> None:
        text = "".join(pipe.client.generate(pipe.model_name, text="Hello river", **GREEDY.build()))
        answer = one(pipe, "Hello river", gen_config=GREEDY, do_preprocess=False)
        assert (answer.text, answer.input_token_len) == (text, 2)
        with pytest.raises(InvalidRequestError, match=r"prompts = .* strings, where no chat template"):
            pipe(USER, do_preprocess=False)

    def test_no_prompt_has_no_answer(self, pipe: Pipeline) -> None:
        assert pipe([]) == []
        assert list(pipe.stream_infer([])) == []

    @pytest.mark.parametrize("prompts", [5, {"role": "user", "content": "x"}, None])
    def test_what_is_no_prompt_is_refused(self, pipe: Pipeline, prompts: object) -> None:
        with pytest.raises(InvalidRequestError, match="prompts"):
            pipe(prompts)  # type: ignore[arg-type]

    def test_a_prompt_without_room_is_answered_with_length(self, pipe: Pipeline) -> None:
        answers = many(pipe, ["Hello" * 300, "Hello"], gen_config=GREEDY)
        count = len(pipe.client.tokenize(pipe.model_name, messages=[{"role": "user", "content": "Hello" * 300}]).ids)
        assert answers[0] == Response("", 0, count, 0, "length")
        assert answers[1].generate_token_len == 12

    def test_more_prompts_than_fit_take_turns_in_order(self, pipe: Pipeline) -> None:
        prompts = [f"{word} {number}" for number in range(4) for word in ("Why", "How")]
        alone = [one(pipe, prompt, gen_config=GREEDY).text for prompt in prompts]
        assert [answer.text for answer in many(pipe, prompts, gen_config=GREEDY)] == alone


class TestConfigs:
    def test_deprecated_arguments_are_honoured_with_a_warning(self, pipe: Pipeline) -> None:
        with pytest.warns(DeprecationWarning, match="deprecated: give it in gen_config") as warned:
            answer = one(pipe, "Hi", request_output_len=3, top_k=1, ignore_eos=True)
        assert (answer.generate_token_len, answer.finish_reason) == (3, "length")
        assert len(warned) == 3
        assert {each.filename for each in warned} == {__file__}
        greedy = one(pipe, "Hi", gen_config=GenerationConfig(max_new_tokens=3, ignore_eos=True))
        assert answer.token_ids == greedy.token_ids

    def test_one_beside_a_config_or_unknown_is_refused(self, pipe: Pipeline) -> None:
        with pytest.raises(TypeError, match="top_k and gen_config"):
            pipe("Hi", gen_config=GREEDY, top_k=5)
        with pytest.raises(TypeError, match=r'no argument "topk".*did you mean top_k'):
            pipe("Hi", topk=5)  # type: ignore[call-arg]
        with pytest.raises(InvalidRequestError, match="gen_config"):
            pipe("Hi", gen_config={"top_k": 1})  # type: ignore[arg-type]

    def test_each_prompt_may_have_its_own(self, pipe: Pipeline) -> None:
        configs = [GenerationConfig(max_new_tokens=length, ignore_eos=True) for length in (2, 5)]
        assert [each.generate_token_len for each in many(pipe, ["a", "b"], gen_config=configs)] == [2, 5]
        with pytest.raises(InvalidRequestError, match="one for each of 1 prompts"):
            pipe("a", gen_config=configs)

    def test_logprobs_are_those_of_the_client(self, pipe: Pipeline) -> None:
        answer = one(pipe, "Hi", gen_config=GenerationConfig(max_new_tokens=4, ignore_eos=True, logprobs=2))
        assert answer.logprobs is not None
        assert [next(iter(each)) for each in answer.logprobs] == answer.token_ids
        assert {len(each) for each in answer.logprobs} == {2}

    @pytest.mark.parametrize("field", [{"n": 2}, {"prompt_logprobs": 1}])
    def test_results_without_a_place_are_refused(self, pipe: Pipeline, field: dict[str, int]) -> None:
        with pytest.raises(InvalidRequestError, match=f"{next(iter(field))} = . is not supported"):
            pipe("Hi", gen_config=GenerationConfig(**field))  # type: ignore[typeddict-item]

    def test_an_error_has_their_names_and_stops_the_others(self, pipe: Pipeline) -> None:
        configs = [GenerationConfig(max_new_tokens=200, ignore_eos=True), GenerationConfig(bad_token_ids=[9999])]
        with pytest.raises(InvalidRequestError, match=r"^bad_token_ids \(bad_words_ids\)\[0\]"):
            pipe(["a", "b"], gen_config=configs)
        pipe.client.sync_request(model=pipe.model_name, timeout=60)


class TestStreams:
    def test_pieces_are_those_of_the_answers(self, pipe: Pipeline) -> None:
        prompts = ["Hello", "river", "Why"]
        answers = many(pipe, prompts, gen_config=GREEDY)
        pieces = list(pipe.stream_infer(prompts, gen_config=GREEDY))
        for answer in answers:
            own = [piece for piece in pieces if piece.index == answer.index]
            assert "".join(piece.text for piece in own) == answer.text
            assert [piece.finish_reason for piece in own] == [None] * (len(own) - 1) + ["length"]
            assert own[-1].generate_token_len == answer.generate_token_len == 12

    def test_closing_a_stream_stops_its_answers(self, pipe: Pipeline) -> None:
        endless = GenerationConfig(max_new_tokens=None, ignore_eos=True)
        stream = pipe.stream_infer(["a", "b", "c", "d"], gen_config=endless)
        next(stream)
        assert 1 <= len(pipe.client.list_requests()) <= 2
        stream.close()  # type: ignore[attr-defined]
        # One that was being started as the stream closed is released once its start was answered.
        wait_until(lambda: pipe.client.list_requests() == [], "an answer goes on")


class TestTemplates:
    PIECES = ChatTemplateConfig(
        meta_instruction="Be short.", system="<S>", eosys="</S>", user="<U>", eoh="</U>", assistant="<A>", eoa="</A>",
        separator="\n", stop_words=["river"],
    )  # fmt: skip

    def test_a_template_of_pieces_takes_the_place_of_the_models(self, pipe: Pipeline) -> None:
        text = "<S>Be short.</S><U>Hello</U><A>"
        other = Pipeline(pipe.client, pipe.model_name, 2, self.PIECES)
        expected = list(pipe.client.generate(pipe.model_name, text=text, **GREEDY.build()))
        assert one(other, "Hello", gen_config=GREEDY).text == "".join(expected)

    @pytest.mark.parametrize("template", [ChatTemplateConfig("base"), ChatTemplateConfig(capability="completion")])
    def test_strings_are_sent_raw_where_there_is_none(self, pipe: Pipeline, template: ChatTemplateConfig) -> None:
        other = Pipeline(pipe.client, pipe.model_name, 2, template)
        assert one(other, "Hello river", gen_config=GREEDY).input_token_len == 2


class TestLife:
    def test_leaving_it_keeps_what_a_server_runs(self, tiny: Path, gateway: Server) -> None:
        with pipeline(str(tiny), "smol", address=gateway.address) as pipe:
            first = one(pipe, "Hi", gen_config=GREEDY)
        with Client(gateway.address) as client:
            assert [info.state for info in client.get_model("smol")] == [ModelState.RUNNING]
        with pipeline("smol", address=gateway.address) as pipe:
            assert one(pipe, "Hi", gen_config=GREEDY) == first
        with pytest.raises(InvalidRequestError, match=r"backend_config .*smol is installed there already"):
            pipeline("smol", address=gateway.address, backend_config=TurbomindEngineConfig())

    def test_what_cannot_be_made_leaves_nothing(self, tiny: Path) -> None:
        with pytest.raises(InvalidRequestError, match="session_len \\(max_length\\) = 999999"):
            pipeline(str(tiny), backend_config=TurbomindEngineConfig(session_len=999_999))
        with pytest.raises(InvalidRequestError, match="backend_config"):
            pipeline(str(tiny), backend_config={"tp": 1})  # type: ignore[arg-type]

    def test_the_level_of_logs(self, tiny: Path) -> None:
        with pytest.raises(ValueError, match="log_level = 'LOUD'"):
            pipeline(str(tiny), log_level="LOUD")
        with pipeline(str(tiny), log_level="WARNING"):
            assert logging.getLogger("headrace_engine").level == logging.WARNING
