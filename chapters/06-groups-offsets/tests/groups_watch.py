"""What must be true of groups, checked against the durable log and against what clients were told.

`DurableGroups` reads every record once, when a leader's high watermark has passed it. So it knows what no failover can
take back. Clients report what they were told, and both must agree.

     8  a commit that was acknowledged is durable, and no later commit or fetch goes back behind it
    14  no commit of a member is durable that the group had removed, replaced or overtaken by then
    20  a partition has one owner in a generation or epoch, and the log knows the owner before the owner does
    21  member epoch ≤ target epoch ≤ group epoch, no epoch falls, and none rises while partitions are given up
    22  a replay of the log gives the live state of every group
    23  every parked request is answered in its time
    24  the same members and partitions give the same assignment

`transactions_watch` has those of transactions:

     9  a reader of committed records sees all of them, and no record of an open or aborted transaction
    25  a transaction has one outcome in all its partitions, offsets included, and its producer is told that outcome
    26  last stable offset ≤ high watermark; it never goes back in a leader epoch, nor passes an undecided record
    27  each input is in the committed output once and in order, and the committed offsets say the same
    28  a producer that was fenced changes nothing
"""

from collections import Counter
from collections.abc import Collection
from typing import Any, NamedTuple

from minibroker.groups.classic import ClassicGroup
from minibroker.groups.classic_transitions import GroupState
from minibroker.groups.consumer import ConsumerGroup
from minibroker.groups.consumer_members import Member
from minibroker.groups.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    GroupRecord,
    OffsetCommitKey,
    OffsetCommitValue,
)
from minibroker.groups.shard import GroupShard
from minibroker.groups.subscription import decode_assignment
from minibroker.simulation.checker import Violation
from minibroker.simulation.states import States

CLAIMS = {
    8: "an acknowledged commit stays",
    9: "read_committed: all committed records and no others",
    14: "no commit of a fenced member is accepted",
    20: "one owner per partition in a generation or epoch",
    21: "member epoch ≤ target epoch ≤ group epoch, and none falls",
    22: "a replay of the log gives the live state",
    23: "every parked request is answered",
    24: "the same input gives the same assignment",
    25: "one outcome for a transaction",
    26: "last stable offset ≤ high watermark, monotone, before the first undecided record",
    27: "exactly once, in order",
    28: "a fenced producer changes nothing",
}


class Broken(Violation):
    """One of the invariants above is broken."""

    def __init__(self, invariant: int, facts: str) -> None:
        Exception.__init__(self, f"invariant {invariant} ({CLAIMS[invariant]}) is broken: {facts}")
        self.invariant = invariant
        self.facts = facts


# Live state and replay ------------------------------------------------------------------------------------------------


def differences(group_id: str, live: GroupShard, replayed: GroupShard, refused: Collection[str] = ()) -> str:
    """How the live state of a group differs from a replay of the log; empty if it does not.

    `refused` are the groups whose last record was refused. If such a group has no members any more, the log still has
    its last ones, as in Kafka: another coordinator lets their sessions expire again.
    """
    offsets, expected = (it.offsets._groups.get(group_id) for it in (live, replayed))
    if offsets != expected:
        return f"the committed offsets are {offsets}, a replay has {expected}"
    group, other = live.group(group_id), replayed.group(group_id)
    if isinstance(group, ConsumerGroup):
        return _of_consumer(group, other)
    if isinstance(other, ConsumerGroup):
        return f"the live group is {group}, a replay has a group of the new protocol"
    stored = replayed._loaded.get(group_id)
    if group_id in refused and group is not None and group.state is GroupState.EMPTY:
        return ""
    if group is None:
        return "" if stored is None else f"there is no live group, a replay has {stored}"
    is_settled = group.is_stored and group.state in (GroupState.EMPTY, GroupState.STABLE)
    if is_settled and group.record().value != stored:
        return f"the live group is {group.record().value}, a replay has {stored}"
    return "" if stored is not None or not group.is_stored else "a replay has no group"


def _of_consumer(group: ConsumerGroup, other: object) -> str:
    if not isinstance(other, ConsumerGroup):
        return f"the live group is one of the new protocol, a replay has {other}"
    one, two = vars(group.facts), vars(other.facts)
    return "; ".join(f"{name} is {one[name]}, a replay has {two[name]}" for name in one if one[name] != two[name])


# The durable log ------------------------------------------------------------------------------------------------------

Place = tuple[str, str, int]
"""A group, a topic and a partition."""


class Note(NamedTuple):
    """What a client writes into the metadata of its commit: which request it was, and in whose name."""

    number: int
    client: str
    member_id: str
    epoch: int

    def text(self) -> str:
        return f"{self.number}|{self.client}|{self.member_id}|{self.epoch}"

    @classmethod
    def of(cls, text: str) -> "Note":
        number, client, member_id, epoch = text.split("|")
        return cls(int(number), client, member_id, int(epoch))


class Commit(NamedTuple):
    """A durable commit of one partition."""

    note: Note
    offset: int


class DurableGroups:
    """The groups as the records before the high watermark have them."""

    def __init__(self, shard: GroupShard, states: States) -> None:
        self.shard = shard
        self.end = 0
        self._states = states
        self._commits: dict[Place, list[Commit]] = {}
        self._floors: dict[Place, Commit] = {}
        """The last commit that was acknowledged to its client."""
        self._told: dict[tuple[str, int, int, str, int], str] = {}
        self._births: Counter[str] = Counter()
        """How often a group has begun again from nothing, with a generation that counts from 1."""

    def take(self, record: GroupRecord, offset: int) -> None:
        """A record has become durable."""
        self.end = offset + 1
        key, value = record
        if isinstance(key, OffsetCommitKey):
            self._on_commit(key, value)
            self.shard.replay(record, offset)
            return
        group_id = key.group_id
        generation = self.generation(group_id)
        before = self._consumer_members(group_id)
        self.shard.replay(record, offset)
        if isinstance(key, GroupMetadataKey | ConsumerGroupMetadataKey):
            self._on_group(group_id, generation, value)
        if isinstance(key, ConsumerGroupCurrentMemberAssignmentKey) and value is not None:
            self._on_member(group_id, before.get(key.member_id))

    def group(self, group_id: str) -> ConsumerGroup | GroupMetadataValue | None:
        """A group of the new protocol, the record of a classic group, or None."""
        found = self.shard.group(group_id)
        return found if isinstance(found, ConsumerGroup) else self.shard._loaded.get(group_id)

    def generation(self, group_id: str) -> int:
        """The generation, or the group epoch."""
        found = self.group(group_id)
        if isinstance(found, ConsumerGroup):
            return found.epoch
        return 0 if found is None else found.generation

    def _consumer_members(self, group_id: str) -> dict[str, Member]:
        found = self.shard.group(group_id)
        return dict(found.facts.members) if isinstance(found, ConsumerGroup) else {}

    # Epochs and owners ------------------------------------------------------------------------------------------------

    def _on_group(self, group_id: str, before: int, value: object) -> None:
        now = self.generation(group_id)
        if value is None or (isinstance(value, GroupMetadataValue) and not value.members and not value.generation):
            # A conversion deletes one group and makes another with the same generation. An empty group begins anew.
            self._births[group_id] += 1
        elif now < before:
            raise Broken(21, f"group {group_id} goes from {before} to {now}")
        found = self.group(group_id)
        if isinstance(value, ConsumerGroupMetadataValue) and isinstance(found, ConsumerGroup):
            self._check_epochs(found)

    def _check_epochs(self, group: ConsumerGroup) -> None:
        facts = group.facts
        if facts.target_epoch > facts.epoch:
            raise Broken(21, f"group {group.group_id}: target epoch {facts.target_epoch}, group epoch {facts.epoch}")
        for it in facts.members.values():
            if it.epoch > facts.target_epoch:
                raise Broken(21, f"{it.member_id} has epoch {it.epoch}, the target has {facts.target_epoch}")

    def _on_member(self, group_id: str, before: Member | None) -> None:
        group = self.shard.group(group_id)
        assert isinstance(group, ConsumerGroup)
        holders: dict[tuple[bytes, int], str] = {}
        for it in group.facts.members.values():
            for partition in it.held():
                other = holders.setdefault(partition, it.member_id)
                if other != it.member_id:
                    raise Broken(20, f"group {group_id}: {other} and {it.member_id} hold {partition}")
        if before is None:
            return
        after = group.facts.members[before.member_id]
        has_returned = before.has_left_for_a_while or after.has_left_for_a_while
        if after.epoch < before.epoch and not has_returned:
            raise Broken(21, f"{after.member_id} goes from epoch {before.epoch} to {after.epoch}")
        # A member that a conversion has just made has had no epoch yet, and may be giving up partitions already.
        is_converted = not before.epoch and after.classic is not None
        if after.revoking and after.epoch != before.epoch and not is_converted:
            raise Broken(21, f"{after.member_id} gets epoch {after.epoch} while it gives up {after.revoking}")
        if after.revoking:
            self._states.reach("partitions given up (new protocol)")
        if group.facts.target_epoch >= after.epoch:
            return
        raise Broken(21, f"{after.member_id} has epoch {after.epoch}, the target has {group.facts.target_epoch}")

    def on_synced(self, group_id: str, generation: int, owner: str, partitions: list[tuple[str, int]]) -> None:
        """A member has its assignment, which the log must have already."""
        if self.generation(group_id) < generation:
            facts = f"{owner} has its assignment of generation {generation}"
            raise Broken(20, f"{facts}, the log of group {group_id} has {self.generation(group_id)}")
        if isinstance(self.group(group_id), ConsumerGroup):
            return
        for topic, number in partitions:
            place = group_id, self._births[group_id], generation, topic, number
            other = self._told.setdefault(place, owner)
            if other != owner:
                raise Broken(20, f"{other} and {owner} have {topic}-{number} in generation {generation} of {group_id}")

    # Commits ----------------------------------------------------------------------------------------------------------

    def _on_commit(self, key: OffsetCommitKey, value: object) -> None:
        assert isinstance(value, OffsetCommitValue), f"nothing deletes offsets here: {key}"
        place, commit = (key.group_id, key.topic, key.partition), Commit(Note.of(value.metadata), value.offset)
        found = self.group(key.group_id)
        if isinstance(found, ConsumerGroup):
            why = _refuses_in_consumer(found, commit.note, value.topic_id, key.partition)
        else:
            why = _refuses_in_classic(found, commit.note, key.topic, key.partition)
        if why:
            raise Broken(14, f"commit {commit} of {place} is accepted, but {why}")
        self._commits.setdefault(place, []).append(commit)
        floor = self._floors.get(place)
        if floor is not None:
            self._compare(place, floor, commit)

    def _compare(self, place: Place, floor: Commit, commit: Commit) -> None:
        """A commit may lower an acknowledged one only if the same client sent it earlier, over a broken connection."""
        if commit.offset >= floor.offset:
            return
        if commit.note.client == floor.note.client and commit.note.number < floor.note.number:
            self._floors[place] = commit
            self._states.reach("a commit overtaken by a later one")
            return
        raise Broken(8, f"{place} goes back from {floor}, which was acknowledged, to {commit}")

    def on_acknowledged(self, place: Place, note: Note, offset: int) -> None:
        """A client learns that its commit is accepted."""
        commits = self._commits.get(place, [])
        acknowledged = Commit(note, offset)
        if acknowledged not in commits:
            raise Broken(8, f"{acknowledged} of {place} was acknowledged, and the log does not have it")
        floor = self._floors.get(place)
        if floor is None or floor.offset < offset:
            self._floors[place] = acknowledged
            for later in commits[commits.index(acknowledged) + 1 :]:
                self._compare(place, self._floors[place], later)

    def floor(self, place: Place) -> int:
        """The offset behind which no fetch may be."""
        found = self._floors.get(place)
        return -1 if found is None else found.offset

    def floors(self) -> dict[Place, int]:
        """The acknowledged offsets of all partitions."""
        return {place: commit.offset for place, commit in self._floors.items()}

    def on_fetched(self, place: Place, offset: int, floor: int) -> None:
        """A client learns an offset; `floor` was acknowledged before it asked."""
        if offset < min(floor, self.floor(place)):
            raise Broken(8, f"a fetch of {place} has {offset}, but {self._floors[place]} was acknowledged before")


def _refuses_in_classic(found: GroupMetadataValue | None, note: Note, topic: str, number: int) -> str:
    """Why a commit must be refused, as far as the record of a classic group can tell."""
    if found is None:
        return "there is no group"
    if note.epoch != found.generation:
        # The generation of the coordinator may be later than that of the last record, but not earlier.
        return f"the group is in generation {found.generation}" if note.epoch < found.generation else ""
    if note.member_id not in [it.member_id for it in found.members]:
        return f"the members are {[it.member_id for it in found.members]}"
    for it in found.members:
        for assigned in decode_assignment(it.assignment).assigned_partitions:
            if assigned.topic == topic and number in assigned.partitions and it.member_id != note.member_id:
                return f"{it.member_id} owns it"
    return ""


def _refuses_in_consumer(group: ConsumerGroup, note: Note, topic_id: bytes, number: int) -> str:
    """Why a commit must be refused by a group of the new protocol."""
    member = group.facts.members.get(note.member_id)
    if member is None:
        return f"the members are {list(group.facts.members)}"
    owner = group.facts.owners.get(topic_id, {}).get(number)
    since: Any = member.assignment_epoch(topic_id, number)
    is_current = note.epoch == member.epoch or (since is not None and since <= note.epoch < member.epoch)
    if not is_current:
        return f"its epoch is {member.epoch}, and it has the partition since {since}"
    return f"{owner} owns it" if owner not in (None, note.member_id) else ""


def is_stable(group: ClassicGroup | ConsumerGroup | None) -> bool:
    """Whether every member has what it should have."""
    return group is not None and group.state.value == "Stable"
