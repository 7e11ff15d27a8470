"""Who answers the workloads: ours, and peers that the user has installed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from bench.peers.workloads import Answer, Prompts, Workload


@dataclass(frozen=True)
class Form:
    """How weights and activations are stored and multiplied.

    Attributes:
        name: as the tables have it.
        bits: of a weight, without scales.
        codes: activations have 8 bits in products.
    """

    name: str
    bits: int
    codes: bool = False


class Contestant(ABC):
    """A server with one model in one format, which is up.

    Attributes:
        who: its name.
        form: its format.
        model: "smol" or "qwen".
    """

    who: str
    form: Form
    model: str

    def suits(self, workload: Workload) -> bool:
        """Whether it is worth the time to measure it with this workload."""
        return True

    @abstractmethod
    def answer(self, prompts: Prompts, new: int) -> Answer:
        """Ask all prompts at once and read the answers to their end."""
