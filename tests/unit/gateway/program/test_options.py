"""The command line: what it takes, and what it says in one line when it does not."""

from __future__ import annotations

import pytest
from headrace_gateway.main import parse
from headrace_gateway.options import EngineAddress
from headrace_proto.pure.addresses import Address

ONE = ["--engine", "e1=127.0.0.1:7071"]


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        parse(list(arguments))
    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith("headrace-gateway: ")
    assert message.count("\n") == 1
    return message


def test_defaults():
    options = parse(ONE)
    assert str(options.listen) == "127.0.0.1:7070"
    assert (options.drain_limit, options.poll_interval, options.reflection, options.name) == (
        30.0,
        1.0,
        True,
        "gateway",
    )
    assert options.engines == (EngineAddress("e1", Address("127.0.0.1", 7071)),)


def test_several_engines_keep_their_order():
    options = parse([*ONE, "--engine", "a.b-c_1=host.example:1", "--engine", "v6=[::1]:65535", "--no-reflection"])
    assert [(engine.name, str(engine.address)) for engine in options.engines] == [
        ("e1", "127.0.0.1:7071"),
        ("a.b-c_1", "host.example:1"),
        ("v6", "[::1]:65535"),
    ]
    assert not options.reflection


@pytest.mark.parametrize(
    "engine",
    [
        "127.0.0.1:7071",
        "=127.0.0.1:7071",
        "a/b=127.0.0.1:7071",
        "e1=",
        "e1=host",
        "e1=host:0",
        "e1=host:65536",
        "e1=:7",
        "e1=http://x:1",
    ],
)
def test_a_malformed_engine_is_named(capsys, engine):
    assert engine in refused(capsys, "--engine", engine)


@pytest.mark.parametrize("listen", ["nonsense", "127.0.0.1", ":7070", "127.0.0.1:99999", "127.0.0.1:x", "::1:80"])
def test_bc194_a_malformed_address_is_named(capsys, listen):
    assert listen in refused(capsys, *ONE, "--listen", listen)


def test_a_name_or_an_address_given_twice_is_named(capsys):
    assert 'engine name "e1"' in refused(capsys, *ONE, "--engine", "e1=127.0.0.1:7072")
    assert 'engine address "127.0.0.1:7071"' in refused(capsys, *ONE, "--engine", "e2=127.0.0.1:7071")


def test_spare_engines_are_those_of_the_list(capsys):
    two = [*ONE, "--engine", "e2=127.0.0.1:7072"]
    assert parse([*two, "--spare", "e2"]).spares == ("e2",)
    assert parse(["--engines-file", "engines", "--spare", "e9"]).spares == ("e9",)
    assert '--spare: there is no engine "e9"' in refused(capsys, *two, "--spare", "e9")
    assert '--spare: there is no engine "a b"' in refused(capsys, "--engines-file", "engines", "--spare", "a b")
    assert 'spare engine "e2" is given twice' in refused(capsys, *two, "--spare", "e2", "--spare", "e2")


def test_without_an_engine_it_says_so(capsys):
    assert "--engine" in refused(capsys)


@pytest.mark.parametrize("other", [("--engines-file", "engines"), ("--engines-dns", "engines:7071")])
def test_engines_come_from_one_source(capsys, other):
    assert "one of --engine, --engines-file and --engines-dns" in refused(capsys, *ONE, *other)
    options = parse(other)
    assert (options.engines, str(options.engines_file or options.engines_dns)) == ((), other[1])


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "soon"])
def test_a_time_out_of_range_is_named(capsys, value):
    assert value in refused(capsys, *ONE, f"--drain-limit={value}")
    assert value in refused(capsys, *ONE, f"--poll-interval={value}")


def test_a_log_format_that_is_none_is_named(capsys):
    assert not parse([*ONE, "--log-format", "console"]).log_json
    assert "yaml" in refused(capsys, *ONE, "--log-format", "yaml")


def test_what_it_does_not_know_is_refused(capsys):
    assert "--nonsense" in refused(capsys, *ONE, "--nonsense")
