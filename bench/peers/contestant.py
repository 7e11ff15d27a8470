"""Contestants in the workloads: ours, and peers that the user has installed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from bench.peers.workloads import Answer, Prompts, Workload


@dataclass(frozen=True)
class Form:
    """Formats of weights and activations.

    Attributes:
        name: name in the tables.
        bits: bits per weight, without scales.
        codes: activations have 8 bits in products.
    """

    name: str
    bits: int
    codes: bool = False


class Contestant(ABC):
    """A running server with one model in one format.

    Attributes:
        who: its name.
        form: its format.
        model: "smol" or "qwen".
    """

    who: str
    form: Form
    model: str

    def suits(self, workload: Workload) -> bool:
        """True if it is to be measured with this workload."""
        return True

    @abstractmethod
    def answer(self, prompts: Prompts, new: int) -> Answer:
        """Send all prompts at once, and read the answers to their end."""
