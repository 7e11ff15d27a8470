"""Sequences that share a prompt: one computes what they can share, then all compute the rest of it in one step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace_engine.core.scheduling.sequence import Sequence, SequenceStatus


@dataclass(slots=True)
class Group:
    """The sequences of one request that have not ended.

    Attributes:
        members: the first one, the leader, computes what all can share, and tells of the prompt what is asked.
        shared: leading ids of the prompt that fill blocks, but for the last id, which everyone computes.
        open: the others wait no more.
    """

    members: list[Sequence]
    shared: int
    open: bool = False

    @property
    def leader(self) -> Sequence:
        """The first one."""
        return self.members[0]

    @property
    def followers(self) -> list[Sequence]:
        """All others."""
        return self.members[1:]

    @property
    def ready(self) -> bool:
        """The leader stands where all can go on from, and waits for it."""
        leader = self.leader
        return leader.pause is not None and leader.status is SequenceStatus.RUNNING and leader.computed >= self.shared

    @property
    def rest(self) -> int:
        """Ids that are to be computed when it opens."""
        return sum(member.length - self.shared for member in self.members)


class Groups:
    """Holds sequences back while the leader of their group computes what they will find in the prefix cache.

    There it waits for them: what is left of the prompt are equal rows then, which computed in one step come to equal
    bits, and so do all rows after them while their ids are the same.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._groups: dict[int, Group] = {}
        self._closed: dict[int, Group] = {}
        self._to_tell: list[Sequence] = []

    def join(self, sequence: Sequence) -> None:
        """A sequence waits for its turn; from now on perhaps for its leader too."""
        number = sequence.request.group
        if not number:
            return
        group = self._groups.get(number)
        if group is None:
            shared = (sequence.prompt_length - 1) // self._block_size * self._block_size
            self._groups[number] = Group([sequence], shared)
            return
        group.members.append(sequence)
        sequence.tell_no_prompt()
        group.open |= group.leader.computed + group.leader.under_way > group.shared
        if not group.open:
            sequence.held, group.leader.pause = True, group.shared
            self._closed[number] = group

    def leave(self, sequence: Sequence) -> None:
        """A sequence is to be computed no more."""
        number = sequence.request.group
        if not number:
            return
        group = self._groups[number]
        led = group.leader is sequence
        group.members.remove(sequence)
        if not group.members:
            del self._groups[number]
        elif led:
            self._succeed(group, sequence)
        if len(group.members) == 1 and number in self._closed:
            self.open(group)

    def ready(self) -> Iterator[Group]:
        """Groups whose members can go on together."""
        return (group for group in list(self._closed.values()) if group.ready)

    def open(self, group: Group) -> None:
        """Let all of a group go on."""
        group.open = True
        for member in group.members:
            member.held, member.pause = False, None
            self._closed.pop(member.request.group, None)

    def take_restarts(self) -> list[Sequence]:
        """Running sequences that are to tell of the prompt, as their leader cannot, and so have to compute it again."""
        if not self._to_tell:
            return []
        found, self._to_tell = self._to_tell, []
        return [sequence for sequence in found if sequence.status is SequenceStatus.RUNNING]

    def _succeed(self, group: Group, ended: Sequence) -> None:
        """Have another one do what is left to do for all."""
        leader = group.leader
        if not group.open:
            leader.held, leader.pause = False, group.shared
        if ended.scoring:
            leader.tell_prompt()
            if leader.status is SequenceStatus.RUNNING:
                self._to_tell.append(leader)
