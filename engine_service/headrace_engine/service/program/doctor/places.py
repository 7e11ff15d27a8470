"""Addresses to listen on, and folders, that the command line names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from headrace_proto.pure.addresses import Address
from headrace_proto.server.listening import ListenError, check_free, parse_address

from headrace_engine.engine.config.model_paths import absent_roots
from headrace_engine.engine.config.options import EngineOptions
from headrace_engine.service.program.doctor.findings import Finding


def examine_ports(listen: str, metrics: Address | None) -> Iterator[Finding]:
    """Yield whether the addresses of a command line are free."""
    yield _port("port", parse_address(listen))
    if metrics is not None:
        yield _port("metrics port", metrics)


def _port(subject: str, address: Address) -> Finding:
    facts = {"address": str(address)}
    try:
        check_free(address)
    except ListenError as error:
        return Finding(subject, str(error), works=False, facts=facts)
    return Finding(subject, f"{address} is free", facts=facts)


def examine_folders(options: EngineOptions) -> Iterator[Finding]:
    """Yield whether the folders of a command line can be used."""
    roots, writable = options.model_roots or (), options.write_roots or ()
    for root in dict.fromkeys(roots):
        write = root in writable
        subject = "write root" if write else "model root"
        yield _folder(subject, root, absent=root in absent_roots(roots), write=write)
    if options.state_dir is not None:
        yield _state(options.state_dir)


def _folder(subject: str, folder: Path, *, absent: bool, write: bool) -> Finding:
    if absent:
        problem = "no such directory: check the path, or mount it"
    elif not os.access(folder, os.R_OK | os.X_OK):
        problem = "this user may not read it"
    elif write and not os.access(folder, os.W_OK | os.X_OK):
        problem = "this user may not write into it"
    else:
        problem = ""
    ok = "can be read and written" if write else "can be read"
    facts = {"folder": str(folder.absolute()), "writable": write}
    return Finding(subject, f"{folder.absolute()}: {problem or ok}", not problem, facts)


def _state(folder: Path) -> Finding:
    """Return whether the engine can keep its state in a folder, which it makes if there is none."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    works = there.is_dir() and os.access(there, os.R_OK | os.W_OK | os.X_OK)
    text = "can be written" if works else f"{there} is no directory that this user may write into"
    return Finding("state directory", f"{folder.absolute()}: {text}", works, {"folder": str(folder.absolute())})
