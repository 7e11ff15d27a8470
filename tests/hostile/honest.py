"""Honest streams in a process of their own: every answer is compared, and the gaps between its elements are kept.

    python -m hostile.honest ADDRESS MODEL

Each line on standard input ends a phase and is answered with one line of JSON about it; the end of input ends it all.
The first phase is the quiet one: what it reads is what all later answers have to be.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from headrace import Client, RetryPolicy

STREAMS = 16
VARIETY = 6
"""Different requests of each stream, one after the other."""

LENGTH = 160
"""Tokens of an answer."""

Answer = tuple[tuple[int, ...], str]


@dataclass
class Phase:
    """What was read since the last line.

    Attributes:
        gaps: milliseconds between the elements of an answer.
        first: milliseconds until the first element of each answer.
        answers: answers that were read whole.
        wrong: what was not as in the quiet phase.
    """

    gaps: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    answers: int = 0
    wrong: list[str] = field(default_factory=list)


class Reader:
    """All streams of one client."""

    def __init__(self, client: Client, model: str) -> None:
        self._client, self._model = client, model
        self._known: dict[tuple[int, int], Answer] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._phase = Phase()
        self._threads = [threading.Thread(target=self._stream, args=(number,)) for number in range(STREAMS)]

    def start(self) -> None:
        """Begin to read."""
        for thread in self._threads:
            thread.start()

    def next_phase(self) -> Phase:
        """What was read since the last call."""
        with self._lock:
            ended, self._phase = self._phase, Phase()
        return ended

    def stop(self) -> None:
        """Read the answers under way to their ends, and no more."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    @property
    def knows_all(self) -> bool:
        """Whether every answer has been read once."""
        return len(self._known) == STREAMS * VARIETY

    def _stream(self, number: int) -> None:
        turn = 0
        while not self._over.is_set():
            try:
                self._answer(number, turn % VARIETY)
            except Exception as error:
                with self._lock:
                    self._phase.wrong.append(f"stream {number}: {type(error).__name__}: {error}")
                self._over.wait(1)
            turn += 1

    def _answer(self, number: int, turn: int) -> None:
        begun = last = time.perf_counter()
        handle, queue = self._client.start_request(self._model, **_request(number, turn))
        ids: list[int] = []
        gaps: list[float] = []
        text = ""
        for element in queue:
            now = time.perf_counter()
            gaps.append(1000 * (now - last))
            last = now
            ids += element.ids_from_generate
            text += element.text
        self._client.release_request(handle)
        self._compare((number, turn), (tuple(ids), text))
        with self._lock:
            self._phase.answers += 1
            self._phase.first.append(1000 * (last - begun) if not gaps else gaps[0])
            self._phase.gaps += gaps[1:]

    def _compare(self, key: tuple[int, int], answer: Answer) -> None:
        with self._lock:
            known = self._known.setdefault(key, answer)
            if known != answer:
                self._phase.wrong.append(f"answer {key}: {len(answer[0])} ids, other than before")


def _request(number: int, turn: int) -> dict[str, Any]:
    prompt = [3 + (7 * number + 13 * turn + 5 * position) % 370 for position in range(4 + 3 * number)]
    fields: dict[str, Any] = {"ids": prompt, "max_new_tokens": LENGTH, "ignore_eos": True}
    if turn % 2:
        return {**fields, "temperature": 1.3, "seed": 100 * number + turn}
    return {**fields, "do_sample": False}


def main() -> None:
    """Read until standard input ends."""
    address, model = sys.argv[1:]
    with Client(address, retry=RetryPolicy(give_up_after=60)) as client:
        reader = Reader(client, model)
        reader.start()
        for _ in sys.stdin:
            while not reader.knows_all:
                time.sleep(0.1)
            print(json.dumps(vars(reader.next_phase())), flush=True)
        reader.stop()


if __name__ == "__main__":
    main()
