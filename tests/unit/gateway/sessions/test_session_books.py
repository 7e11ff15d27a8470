"""The gateway's books of sessions, without input or output."""

from __future__ import annotations

import pytest
from headrace_gateway.sessions.limits import SessionLimits
from headrace_gateway.status import CallError
from headrace_proto.v1 import session_pb2 as wire
from unit.gateway.sessions.session_plumbing import SMALL, Plumbing, read_all


def test_a_step_becomes_one_message_a_client():
    """Rows of one engine's step are grouped by client, under each client's own channels."""
    plumbing = Plumbing()
    one, two = plumbing.clients
    handles = [plumbing.log(tokens=[number]) for number in range(6)]
    for number, handle in enumerate(handles):
        plumbing.clients[number % 2].attach(handle)
    plumbing.flow()
    assert one.read()
    assert not one.read()
    assert two.read()
    assert [one[channel].tokens for channel in (1, 2, 3)] == [[0], [2], [4]]
    assert [two[channel].tokens for channel in (1, 2, 3)] == [[1], [3], [5]]


def test_details_follow_their_rows():
    """Log-probabilities stay with their tokens when rows are regrouped, and when they waited."""
    plumbing = Plumbing(limits=SessionLimits())
    one, two = plumbing.clients
    plain, rich = plumbing.log(tokens=[1, 2, 3]), plumbing.log(tokens=[4, 5, 6, 7, 8, 9], logprobs=True)
    one.attach(plain)
    for client in (one, two):
        client.attach(rich)
    plumbing.flow()
    plumbing.logs[rich].tokens += [10, 11]
    plumbing.flow()
    while one.read() or two.read():
        pass
    assert one[2].logprobs == two[1].logprobs == [-float(token) for token in range(4, 12)]
    assert one[1].logprobs == []


def test_a_slow_client_is_parked_and_others_are_not():
    """What does not fit is dropped and its window closed; later it goes on from there, once and in order."""
    plumbing = Plumbing()
    slow, quick = plumbing.clients
    handle = plumbing.log()
    for client in (slow, quick):
        client.attach(handle, window=100_000)
    log = plumbing.logs[handle]
    for token in range(500):
        log.tokens.append(token)
        plumbing.flow()
        while quick.read():
            pass
        assert slow.channels.outbox.held <= SMALL.held_bytes
    assert quick[1].tokens == log.tokens
    assert sorted(channel.window for channel in plumbing.engines["e1"].channels.values()) == [0, 100_000]
    while slow.read():
        pass
    assert slow[1].window.position == slow[1].window.limit == slow[1].position < 500
    log.ended = True
    read_all(plumbing)
    assert slow[1].tokens == quick[1].tokens == log.tokens
    assert slow[1].whole


def test_a_parked_client_is_told_the_status_and_the_end():
    """Statuses and ends come whatever was dropped, and each once."""
    plumbing = Plumbing(clients=1)
    (client,) = plumbing.clients
    handle = plumbing.log()
    client.attach(handle, window=100_000)
    plumbing.flow()
    plumbing.logs[handle].tokens += range(1000)
    plumbing.flow()
    plumbing.logs[handle].ended = True
    plumbing.flow()
    while client.read():
        pass
    assert client[1].end.position == 1000
    assert not client[1].whole
    assert client[1].statuses == [3]
    read_all(plumbing)
    assert client[1].tokens == list(range(1000))
    assert client[1].statuses == [3]


def test_the_heaviest_are_dropped_first():
    """A short answer beside a long one is not touched."""
    plumbing = Plumbing(clients=1)
    (client,) = plumbing.clients
    short, long = plumbing.log(tokens=[1, 2]), plumbing.log()
    client.attach(short)
    client.attach(long, window=100_000)
    plumbing.flow()
    plumbing.logs[long].tokens += range(1000)
    plumbing.flow()
    assert [channel.window for channel in plumbing.engines["e1"].channels.values()] == [4096, 0]


def test_an_ack_opens_what_the_client_closed():
    """A window acknowledged as 0 opens as it was; one attached as 0 stays, until the client says otherwise."""
    plumbing = Plumbing(clients=1)
    (client,) = plumbing.clients
    handle = plumbing.log(tokens=[1, 2, 3])
    client.attach(handle, window=0)
    client.say(acks=[wire.Ack(channel=1)])
    plumbing.flow()
    client.read()
    assert client[1].tokens == []
    client.say(acks=[wire.Ack(channel=1, window=2)])
    client.say(acks=[wire.Ack(channel=1, window=0)])
    client.say(acks=[wire.Ack(channel=1)])
    plumbing.flow()
    client.read()
    assert client[1].tokens == [1, 2]


def test_a_lost_engine_ends_its_channels_only():
    """Each of them with a HandleError under the client's own handle; what had come is told before."""
    plumbing = Plumbing(clients=1)
    (client,) = plumbing.clients
    lost, kept = plumbing.log("e1", tokens=[1, 2]), plumbing.log("e2", tokens=[3])
    client.attach(lost)
    client.attach(kept)
    plumbing.flow()
    plumbing.lose("e1")
    plumbing.logs[kept].tokens.append(4)
    plumbing.flow()
    while client.read():
        pass
    assert client[1].tokens == [1, 2]
    assert CallError(client[1].error).reason == "ENGINE_UNREACHABLE"
    assert (client[2].tokens, client[2].error) == ([3, 4], None)


def test_a_detach_is_heard_by_the_engine_and_frees_what_waits():
    plumbing = Plumbing(clients=1)
    (client,) = plumbing.clients
    handle = plumbing.log(tokens=list(range(20)))
    client.attach(handle)
    plumbing.flow()
    plumbing.logs[handle].tokens += range(20)
    plumbing.flow()
    assert client.channels.outbox.held
    client.say(detach=[client.readings.detach(1), 77])
    plumbing.flow()
    assert plumbing.engines["e1"].detached == [1]
    assert client.channels.outbox.held == 0


def test_an_engine_that_is_out_of_step_ends_that_reader_only():
    plumbing = Plumbing(clients=1)
    (client,) = plumbing.clients
    for _ in range(2):
        client.attach(plumbing.log(tokens=[1]))
    plumbing.flow()
    step = wire.StepBatch(
        channels=[1, 2], positions=[5, 1], counts=[1, 1], token_ids=[9, 9], texts=["<9>"] * 2, checksums=[0, 0]
    )
    client.readings.of[2].start = 0
    plumbing.upstreams["e1"].deliver(wire.SessionResponse(step=step))
    message = client.channels.outbox.take()
    while message is not None and not message.errors:
        message = client.channels.outbox.take()
    assert [error.channel for error in message.errors] == [1]
    assert client.channels.count == 1


def test_columns_that_do_not_fit_together_are_refused():
    with pytest.raises(ValueError, match="columns have"):
        Plumbing().upstreams["e1"].deliver(wire.SessionResponse(step=wire.StepBatch(channels=[1], counts=[1])))


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"attach": [wire.Attach(handle="e1/x/0")]}, "attach[0].channel"),
        ({"attach": [wire.Attach(channel=1, handle="e1/x/0")] * 2}, "attach[1].channel"),
        ({"attach": [wire.Attach(channel=1, handle="é" * 600)]}, "attach[0].handle"),
        (
            {"attach": [wire.Attach(channel=1, handle="e1/x/0", from_position=2)], "acks": [wire.Ack(channel=1)]},
            "acks[0].position",
        ),
        (
            {"attach": [wire.Attach(channel=1, handle="e1/x/0")], "acks": [wire.Ack(channel=1, position=9)]},
            "acks[0].position",
        ),
    ],
)
def test_what_breaks_the_rules_is_refused_with_its_field(message, field):
    with pytest.raises(CallError) as caught:
        Plumbing().clients[0].say(**message)
    assert caught.value.status.message.startswith(field)


def test_unroutable_handles_are_items_and_touch_no_other():
    plumbing = Plumbing(clients=1)
    (client,) = plumbing.clients
    for handle in ("no handle", "e9/x/1", "e1/x/99", plumbing.log(tokens=[7])):
        client.attach(handle)
    plumbing.flow()
    while client.read():
        pass
    reasons = [CallError(client[channel].error).reason for channel in (1, 2, 3)]
    assert reasons == ["UNKNOWN_REQUEST", "UNKNOWN_ENGINE", "UNKNOWN_REQUEST"]
    assert client[4].tokens == [7]


def test_a_client_that_only_attaches_nonsense_is_read_no_further():
    plumbing = Plumbing(clients=1)
    (client,) = plumbing.clients
    for _ in range(4097):
        client.attach("nonsense")
    assert client.channels.backlogged
    while client.read():
        pass
    assert not client.channels.backlogged
