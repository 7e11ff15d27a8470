"""Measure prefix affinity: conversations over three engines, with and without, beside the best possible.

    make bench-routing        or        python -m bench.service.routing [--conversations 36] [--turns 6] [--no-write]

Three engine services with a tiny model and one gateway, all real processes on loopback. Conversations begin with one of
three openings of 128 ids, and each turn sends all ids so far, the answers among them, and 48 new ones; answers have 32
ids. Twelve clients take turns at random, the same ones in each run. An engine's batch holds four requests, and its KV
pool twice what a third of all conversations takes, so that they do not all fit one engine.

Measured of each run: the share of prompt ids that engines took from their caches, as requests report it; requests of
the busiest engine by the mean of all; and the longest queue that any engine had, looked at every 20 ms. Nothing of this
is a time. The best possible is simulated: one cache that never forgets holds every block of every prompt and answer.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace import Client
from support.models.tiny_models import make_tiny_llama
from support.servers.processes import engine_server, gateway_server

from bench.common.machine import cpu_name
from bench.common.page import ROUTING, measurement

MODEL = "tiny"
ENGINES, CLIENTS, BATCH = 3, 12, 4
OPENING, ASKED, ANSWERED, BLOCK = 128, 48, 32, 16


@dataclass
class Conversation:
    """One conversation: its ids so far, and the random numbers of what is asked next."""

    ids: list[int]
    random: random.Random
    turns: int = 0

    def ask(self) -> list[int]:
        """Return the ids of the next prompt."""
        self.ids += [self.random.randrange(3, 380) for _ in range(ASKED)]
        return list(self.ids)


@dataclass
class Run:
    """What one run came to.

    Attributes:
        prompts: ids of all prompts.
        cached: of these, those from caches.
        requests: number of requests by engine.
        longest_queue: most requests that waited at one engine.
        sent: prompt and answer of each request, in the order of their starts.
    """

    prompts: int = 0
    cached: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    longest_queue: int = 0
    sent: list[tuple[list[int], list[int]]] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Share of prompt ids from caches."""
        return self.cached / self.prompts

    @property
    def busiest(self) -> float:
        """Requests of the busiest engine by the mean."""
        return max(self.requests.values()) * ENGINES / sum(self.requests.values())


def best_possible(sent: Sequence[tuple[list[int], list[int]]]) -> float:
    """Return the share of prompt ids that one cache which never forgets would have had."""
    held: set[tuple[int, ...]] = set()
    cached = 0
    for prompt, answer in sent:
        blocks = range(BLOCK, len(prompt), BLOCK)  # The last id is always computed.
        cached += next(
            (end - BLOCK for end in blocks if tuple(prompt[:end]) not in held), (len(prompt) - 1) // BLOCK * BLOCK
        )
        whole = [*prompt, *answer]
        held.update(tuple(whole[:end]) for end in range(BLOCK, len(whole) + 1, BLOCK))
    return cached / sum(len(prompt) for prompt, _ in sent)


def measured(gateway: Client, conversations: int, turns: int) -> Run:
    """Hold all conversations; return what came of it."""
    run, dice, lock = Run(), random.Random(1), threading.Lock()
    openings = [[dice.randrange(3, 380) for _ in range(OPENING)] for _ in range(3)]
    open_ones = [Conversation(list(openings[n % 3]), random.Random(n)) for n in range(conversations)]

    def next_one() -> Conversation | None:
        with lock:
            return open_ones.pop(dice.randrange(len(open_ones))) if open_ones else None

    def talk(_: int) -> None:
        while (one := next_one()) is not None:
            _turn(gateway, one, run, lock)
            with lock:
                if one.turns < turns:
                    open_ones.append(one)

    with _watching(gateway, run), ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(talk, range(CLIENTS)))
    return run


def _turn(gateway: Client, one: Conversation, run: Run, lock: threading.Lock) -> None:
    prompt = one.ask()
    answer: list[int] = []
    with lock:
        run.sent.append((prompt, answer))
    config = {"max_new_tokens": ANSWERED, "do_sample": False, "ignore_eos": True}
    handle, queue = gateway.start_request(MODEL, ids=prompt, **config)  # type: ignore[arg-type]
    for elements in queue:
        answer += elements.ids_from_generate
    stat = queue.RequestStatInfo()
    gateway.release_request(handle)
    one.ids += answer
    one.turns += 1
    with lock:
        run.prompts += len(prompt)
        run.cached += stat["context_cached_length"] or 0
        run.requests[handle.partition("/")[0]] += 1


@contextmanager
def _watching(gateway: Client, run: Run) -> Iterator[None]:
    """Look at the engines' queues meanwhile."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.02):
            run.longest_queue = max(run.longest_queue, *(stat.waiting for stat in gateway.engine_stats(MODEL)))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def one_run(model: Path, conversations: int, turns: int, *arguments: str) -> Run:
    """Measure with engines and a gateway of their own; `arguments` are the gateway's."""
    longest = OPENING + turns * (ASKED + ANSWERED)
    blocks = 2 * conversations * (longest // BLOCK + 1) // ENGINES
    with ExitStack() as stack:
        engines = {f"e{n}": stack.enter_context(engine_server(f"e{n}")).address for n in range(ENGINES)}
        gateway = stack.enter_context(gateway_server(engines, *arguments))
        client = stack.enter_context(Client(gateway.address))
        while not all(engine.reachable for engine in client.server_info().engines):
            time.sleep(0.1)
        client.install_model(
            MODEL, path=str(model), max_batch=BATCH, max_length=longest + BLOCK, num_blocks=blocks, num_threads=1
        )
        client.start_model(MODEL)
        return measured(client, conversations, turns)


def table(runs: dict[str, Run], conversations: int, turns: int) -> str:
    """Return the section of the page."""
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    lines = [
        f"{date}. {cpu_name()}. {conversations} conversations of {turns} turns, {CLIENTS} clients, {ENGINES} engines.",
        "",
        "| | prompt ids from caches | best possible | requests of the busiest engine, by the mean | longest queue |",
        "|---|---|---|---|---|",
    ]
    for name, run in runs.items():
        best = best_possible(run.sent)
        lines.append(f"| {name} | {run.share:.1%} | {best:.1%} | {run.busiest:.2f} | {run.longest_queue} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and write the page's section."""
    parser = measurement(__doc__)
    parser.add_argument("--conversations", type=int, default=36)
    parser.add_argument("--turns", type=int, default=6)
    arguments = parser.parse_args()
    size = (arguments.conversations, arguments.turns)
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_llama(Path(folder) / "tiny", max_position_embeddings=2048)
        runs = {"affinity": one_run(model, *size), "load alone": one_run(model, *size, "--no-affinity")}
    text = table(runs, *size)
    print(text)
    if arguments.write:
        ROUTING.write(text)


if __name__ == "__main__":
    main()
