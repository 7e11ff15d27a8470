"""Sequences that share a prompt: one computes the shared blocks, then all compute the rest of it in one step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace_engine.core.scheduling.sequence import Sequence, SequenceStatus


@dataclass(slots=True)
class Group:
    """The sequences of one request that have not ended.

    Attributes:
        members: the first one, the leader, computes the shared blocks and reports prompt logprobs.
        shared: number of leading prompt ids in full blocks; excludes the last id, which every member computes.
        open: the followers no longer wait for the leader.
    """

    members: list[Sequence]
    shared: int
    open: bool = False

    @property
    def leader(self) -> Sequence:
        """The first member."""
        return self.members[0]

    @property
    def followers(self) -> list[Sequence]:
        """All other members."""
        return self.members[1:]

    @property
    def ready(self) -> bool:
        """True if the leader has computed the shared blocks and is paused there for the others."""
        leader = self.leader
        return leader.pause is not None and leader.status is SequenceStatus.RUNNING and leader.computed >= self.shared

    @property
    def rest(self) -> int:
        """Number of ids left to compute when the group opens."""
        return sum(member.length - self.shared for member in self.members)


class Groups:
    """Holds sequences back while the leader of their group computes blocks that they will find in the prefix cache.

    The leader then waits for them: the rest of the prompt becomes equal rows, which give bit-identical results when
    computed in one step, and so do all later rows as long as their ids are equal.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._groups: dict[int, Group] = {}
        self._waiting: dict[int, Group] = {}
        self._to_restart: list[Sequence] = []

    def join(self, sequence: Sequence) -> None:
        """Add a waiting sequence to its group, which may hold it back for the leader."""
        number = sequence.request.group
        if not number:
            return
        group = self._groups.get(number)
        if group is None:
            shared = (sequence.prompt_length - 1) // self._block_size * self._block_size
            self._groups[number] = Group([sequence], shared)
            return
        group.members.append(sequence)
        if sequence.request.rules is group.leader.request.rules:
            sequence.tables = group.leader.tables
        sequence.skip_prompt()
        group.open |= group.leader.computed + group.leader.in_flight > group.shared
        if not group.open:
            # Held ones own no blocks yet: they get references to the leader's once these are in the prefix cache.
            sequence.held, group.leader.pause = True, group.shared
            self._waiting[number] = group

    def leave(self, sequence: Sequence) -> None:
        """Remove a sequence that has ended; if it was the leader, another member replaces it."""
        number = sequence.request.group
        if not number:
            return
        group = self._groups[number]
        led = group.leader is sequence
        group.members.remove(sequence)
        if not group.members:
            del self._groups[number]
        elif led:
            self._replace_leader(group, sequence)
        if len(group.members) == 1 and number in self._waiting:
            self.open(group)

    def ready(self) -> Iterator[Group]:
        """Return the groups whose members can continue together."""
        return (group for group in list(self._waiting.values()) if group.ready)

    def open(self, group: Group) -> None:
        """Let all members of a group continue."""
        group.open = True
        for member in group.members:
            member.held, member.pause = False, None
            self._waiting.pop(member.request.group, None)

    def take_restarts(self) -> list[Sequence]:
        """Return running sequences that must recompute the prompt to report what their former leader had not."""
        if not self._to_restart:
            return []
        found, self._to_restart = self._to_restart, []
        return [sequence for sequence in found if sequence.status is SequenceStatus.RUNNING]

    def _replace_leader(self, group: Group, ended: Sequence) -> None:
        """Make the next member the leader, with whatever the ended one left undone."""
        leader = group.leader
        if not group.open:
            # It computes the shared blocks anew, unless the ended one left some in the prefix cache.
            leader.held, leader.pause = False, group.shared
        if ended.reports_prompt:
            leader.report_prompt()
            if leader.status is SequenceStatus.RUNNING:
                self._to_restart.append(leader)
