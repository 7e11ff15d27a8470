"""vLLM's service beside the engine's own: the same answers."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from typing import Any

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as wire
from tokenizers import Tokenizer

from .conftest import MODEL, Served

PROMPT = [1, 20, 30, 40, 50]


def request(*, stream: bool = False, name: str = "", prompt: list[int] = PROMPT, **params: Any) -> wire.GenerateRequest:
    made = wire.GenerateRequest(request_id=name, stream=stream, sampling_params=wire.SamplingParams(**params))
    made.tokenized.input_ids.extend(prompt)
    return made


def wholes(served: Served, asked: wire.GenerateRequest) -> list[wire.GenerateComplete]:
    """The whole answers, by index."""
    found = [answer.complete for answer in served.vllm.Generate(asked) if answer.HasField("complete")]
    return sorted(found, key=lambda one: one.index)


def own(served: Served, **config: Any) -> Any:
    """The same from the engine's own service: its ids, and its queue."""
    _, queue = served.client.start_request(MODEL, ids=PROMPT, **config)
    elements = list(queue)
    return [token for element in elements for token in element.ids_from_generate], elements, queue


def test_ids_are_those_of_the_own_service(served: Served) -> None:
    (whole,) = wholes(served, request(max_tokens=12, seed=7, temperature=0.8, top_k=50, top_p=0.9, ignore_eos=True))
    ids, _, _ = own(served, max_new_tokens=12, seed=7, temperature=0.8, top_k=50, top_p=0.9, ignore_eos=True)
    assert (list(whole.output_ids), whole.finish_reason) == (ids, "length")
    assert (whole.prompt_tokens, whole.completion_tokens) == (len(PROMPT), 12)


def test_chunks_add_up_to_the_whole(served: Served) -> None:
    answers = list(served.vllm.Generate(request(stream=True, n=2, max_tokens=6, seed=3, ignore_eos=True, logprobs=1)))
    for index in (0, 1):
        chunks = [one.chunk for one in answers if one.HasField("chunk") and one.chunk.index == index]
        (whole,) = [one.complete for one in answers if one.HasField("complete") and one.complete.index == index]
        assert [token for chunk in chunks for token in chunk.token_ids] == list(whole.output_ids)
        logprobs = [value for chunk in chunks for value in chunk.output_logprobs.token_logprobs]
        assert logprobs == list(whole.output_logprobs.token_logprobs)
        assert chunks[-1].completion_tokens == whole.completion_tokens == 6


def test_logprobs_are_those_of_the_own_service(served: Served) -> None:
    (whole,) = wholes(served, request(max_tokens=4, temperature=0, logprobs=2, prompt_logprobs=1, ignore_eos=True))
    _, elements, _ = own(served, max_new_tokens=4, do_sample=False, logprobs=True, top_logprobs=2, ignore_eos=True)
    tokens = [value for element in elements for value in element.token_logprobs_list]
    tops = [top for element in elements for top in element.log_probs_list]
    found = whole.output_logprobs
    assert list(found.token_logprobs) == pytest.approx(tokens, abs=1e-4)
    assert [list(top.token_ids) for top in found.top_logprobs] == [[token for token, _ in top] for top in tops]
    assert list(whole.input_logprobs.token_ids) == PROMPT
    assert [one.HasField("value") for one in whole.input_logprobs.token_logprobs] == [False, True, True, True, True]


def test_stops_say_what_matched(served: Served) -> None:
    ids, _, _ = own(served, max_new_tokens=8, do_sample=False, ignore_eos=True)
    stop = next(token for token in ids[2:] if token not in ids[:2])
    (whole,) = wholes(served, request(max_tokens=8, temperature=0, ignore_eos=True, stop_token_ids=[stop]))
    assert (whole.finish_reason, whole.matched_token_id, whole.output_ids[-1]) == ("stop", stop, stop)


def test_a_constraint_is_kept(served: Served) -> None:
    choice = wire.ChoiceConstraint(choices=["yes", "no"])
    (whole,) = wholes(served, request(max_tokens=20, seed=1, choice=choice))
    text = served.client.detokenize(MODEL, list(whole.output_ids)).text
    assert (text, whole.finish_reason) in (("yes", "stop"), ("no", "stop"))


def test_a_text_is_tokenized(served: Served) -> None:
    asked = wire.GenerateRequest(text="Hello", sampling_params=wire.SamplingParams(max_tokens=1))
    (whole,) = wholes(served, asked)
    assert whole.prompt_tokens == len(served.client.tokenize(MODEL, "Hello").ids)


@pytest.mark.parametrize("way", ["Abort", "drop"])
def test_a_request_ends_with_its_call_or_by_abort(served: Served, way: str) -> None:
    served.gate.shut()
    call = served.vllm.Generate(request(stream=True, name="r1", max_tokens=200, ignore_eos=True))
    served.gate.let(3)
    next(call)
    assert served.requests == 1
    if way == "drop":
        call.cancel()
        served.is_idle()
        return
    served.vllm.Abort(wire.AbortRequest(request_ids=["r1", "unknown"]))
    assert list(call)[-1].complete.finish_reason == "abort"


def test_a_second_request_of_a_name_in_progress_is_refused(served: Served) -> None:
    served.gate.shut()
    call = served.vllm.Generate(request(stream=True, name="r2", max_tokens=200, ignore_eos=True))
    served.gate.let(3)
    next(call)
    with pytest.raises(grpc.RpcError) as refused:
        list(served.vllm.Generate(request(name="r2")))
    assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS
    call.cancel()


def test_embeddings_are_those_of_the_own_service(served: Served) -> None:
    asked = wire.EmbedRequest(tokenized=wire.TokenizedInput(input_ids=PROMPT))
    found = served.vllm.Embed(asked)
    (expected,) = served.client.embed(MODEL, [PROMPT])
    assert list(found.embedding) == pytest.approx(list(expected.values), abs=1e-6)
    assert (found.embedding_dim, found.prompt_tokens) == (len(found.embedding), len(PROMPT))


def test_the_tokenizer_is_a_zip_that_its_library_reads(served: Served) -> None:
    chunks = list(served.vllm.GetTokenizer(common_pb2.GetTokenizerRequest()))
    data = b"".join(chunk.data for chunk in chunks)
    assert chunks[-1].sha256 == hashlib.sha256(data).hexdigest()
    files = zipfile.ZipFile(io.BytesIO(data))
    tokenizer = Tokenizer.from_str(files.read("tokenizer.json").decode())
    text = "Hello <|im_end|> world"
    assert tokenizer.encode(text).ids == list(served.client.tokenize(MODEL, text).ids)
    settings = json.loads(files.read("tokenizer_config.json"))
    assert "message" in settings["chat_template"]
    again = b"".join(chunk.data for chunk in served.vllm.GetTokenizer(common_pb2.GetTokenizerRequest()))
    assert again == data


def test_facts_are_those_of_the_model(served: Served) -> None:
    assert served.vllm.HealthCheck(wire.HealthCheckRequest()).healthy
    info = served.vllm.GetModelInfo(wire.GetModelInfoRequest())
    assert (info.served_model_name, info.max_context_length, info.model_type) == (MODEL, 256, "llama")
    server = served.vllm.GetServerInfo(wire.GetServerInfoRequest())
    assert (server.server_type, server.block_size, server.max_num_seqs) == ("vllm-grpc", 16, 32)


def test_stored_blocks_are_told_with_their_ids(served: Served) -> None:
    prompt = [*range(100, 132), 5]
    events = served.vllm.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(start_sequence_number=40))
    assert next(events).sequence_number == 41
    wholes(served, request(max_tokens=1, prompt=prompt))
    told: list[int] = []
    for batch in events:
        told += [token for event in batch.events for block in event.stored.blocks for token in block.token_ids]
        if set(prompt[:32]) <= set(told):
            break
    events.cancel()


def test_numbers_of_events_leave_room_for_more(served: Served) -> None:
    asked = common_pb2.SubscribeKvEventsRequest(start_sequence_number=2**64 - 1)
    with pytest.raises(grpc.RpcError) as refused:
        next(served.vllm.SubscribeKvEvents(asked))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "start_sequence_number" in refused.value.details()


@pytest.mark.parametrize("method", ["FlushCache", "StartProfile", "StopProfile"])
def test_what_is_not_there_is_refused_by_name(served: Served, method: str) -> None:
    asked = getattr(common_pb2, f"{method}Request")()
    with pytest.raises(grpc.RpcError) as refused:
        getattr(served.vllm, method)(asked)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == f"{method} is not supported here"
