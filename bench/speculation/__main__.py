"""What speculation gains: ids per second with it and without, in turns, and drafted ids that held.

    make bench-speculation     or     python -m bench.speculation [--rounds 5] [--new 160] [--no-write]

An engine with SmolLM2 as its own process answers three loads, at 1, 4 and 16 requests: JSON by a schema and an edit of
a text in the prompt, both greedy, and free chat at temperature 0.7 with seeds; all by the model's chat template. Two
pairs of models are measured: Q4_1, from its package, without speculation and with NGRAM; and the same values in
bfloat16, without and with DRAFT, where the model in Q4_1 drafts: the smallest one that there is with this vocabulary,
and no smaller a model, but one of which a step reads less. Those of a pair answer each load in turns, and requests with
equal ids are counted. Prompts are cached by then, so that times are those of decoding. Writes sections of
results/speculation.md.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace import Client
from headrace.fields import InstallFields
from support.servers.processes import engine_server

from bench.common.machine import cpu_name
from bench.common.models import BenchModels
from bench.common.page import DRAFT_MODEL, SPECULATION, measurement
from bench.speculation.loads import LOADS, Load

COUNTS = 1, 4, 16
"""Numbers of requests at once."""

SECTIONS = {"NGRAM": SPECULATION, "DRAFT": DRAFT_MODEL}
"""Where the rows of each pair of models stand, by its speculation."""

FORMS = "plain", "drafting"
"""Names of the models of a pair: without speculation, and with it."""


@dataclass(frozen=True)
class Answered:
    """The answers to one load.

    Attributes:
        ids: of each request.
        seconds: until the last of them ended.
        drafted, accepted: drafted ids, and those that held.
    """

    ids: list[list[int]]
    seconds: float
    drafted: int
    accepted: int

    @property
    def count(self) -> int:
        """Number of ids in all."""
        return sum(map(len, self.ids))


@dataclass(frozen=True)
class Row:
    """One load at one number of requests: the rounds without speculation, and those with it."""

    load: str
    requests: int
    plain: list[Answered]
    drafting: list[Answered]

    @property
    def gain(self) -> float:
        """Ids per second with speculation, as a multiple of those without: the median of all rounds."""
        pairs = zip(self.plain, self.drafting, strict=True)
        return statistics.median(with_.count / with_.seconds * off.seconds / off.count for off, with_ in pairs)

    @property
    def alike(self) -> int:
        """Number of requests whose ids are the same with and without."""
        return sum(a == b for a, b in zip(self.plain[0].ids, self.drafting[0].ids, strict=True))

    def table_row(self) -> str:
        """Return the row of the table."""
        rates = [statistics.median(one.count / one.seconds for one in some) for some in (self.plain, self.drafting)]
        drafted, accepted = (sum(getattr(one, name) for one in self.drafting) for name in ("drafted", "accepted"))
        total = sum(one.count for one in self.drafting)
        held = f"{accepted / drafted:.0%}" if drafted else "–"
        cells = f"{rates[0]:.0f} | {rates[1]:.0f} | {self.gain:.2f} × | {drafted / total:.0%} | {held}"
        return f"| {self.load} | {self.requests} | {cells} | {accepted / total:.0%} | {self.alike} of {self.requests} |"


def main() -> None:
    """Measure, and write the results."""
    parser = measurement(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="number of times that each load is answered, in turns")
    parser.add_argument("--new", type=int, default=160, help="ids of an answer, at most")
    parser.add_argument("--drafts", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="pairs to measure")
    given = parser.parse_args()
    for drafts in given.drafts:
        text = _table(list(_rows(drafts, given.rounds, given.new)), given.rounds)
        print(text)
        if given.write:
            SECTIONS[drafts].write(text)


def _rows(drafts: str, rounds: int, new: int) -> Iterator[Row]:
    """Measure one pair of models with all loads."""
    with engine_server("e1", "--backend", "cpu") as server, Client(server.address) as client:
        for name in FORMS:
            _install(client, name, drafts)
        for load in LOADS:
            for count in COUNTS:
                yield _measured(client, load, count, rounds, new)


def _install(client: Client, name: str, drafts: str) -> None:
    packaged = BenchModels.chosen().packaged
    path = BenchModels.chosen().made_smol() if drafts == "DRAFT" else packaged
    fields: InstallFields = {"max_batch": 16, "max_length": 2048}
    if name == "drafting" and drafts == "DRAFT":
        fields |= {"speculation": "DRAFT", "draft_model": str(packaged)}
    elif name == "drafting":
        fields |= {"speculation": "NGRAM"}
    client.install_model(name, str(path), **fields)
    client.start_model(name)


def _measured(client: Client, load: Load, count: int, rounds: int, new: int) -> Row:
    answered: dict[str, list[Answered]] = {name: [] for name in FORMS}
    for name in FORMS:
        _answer(client, name, load, count, new)  # Caches the prompts.
    for number in range(rounds):
        names = list(FORMS)
        for name in names if number % 2 else reversed(names):
            answered[name].append(_answer(client, name, load, count, new))
    row = Row(load.name, count, *answered.values())
    print(row.table_row(), flush=True)
    return row


def _answer(client: Client, name: str, load: Load, count: int, new: int) -> Answered:
    began = time.perf_counter()
    started = [client.start_request(name, max_new_tokens=new, **load.request(number)) for number in range(count)]
    ids = [[token_id for element in queue for token_id in element.ids_from_generate] for _, queue in started]
    seconds = time.perf_counter() - began
    stats = [queue.RequestStatInfo() for _, queue in started]
    for handle, _ in started:
        client.release_request(handle)
    drafted, accepted = (sum(stat[key] or 0 for stat in stats) for key in ("drafted_tokens", "accepted_tokens"))
    return Answered(ids, seconds, drafted, accepted)


def _table(rows: Sequence[Row], rounds: int) -> str:
    lines = [
        f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC. {cpu_name()}; medians of {rounds} in turns.",
        "",
        "| load | requests | ids/s without | with | gain | drafted of all ids | held | accepted of all | same ids |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        *(row.table_row() for row in rows),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
