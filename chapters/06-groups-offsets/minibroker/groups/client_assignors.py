"""The assignors of the classic protocol, which the leader of a group runs. A pure module.

| assignor | rule | moves partitions |
|---|---|---|
| range | a topic is divided into runs of partitions; topics with equal counts and subscribers get equal runs | often |
| round-robin | the partitions are given to one member after the other | often |
| sticky | all members get the same number of partitions, and keep the ones they own | only for balance |
| cooperative-sticky | like sticky, but a partition has no owner for one rebalance before it moves | only for balance |

With the first three, all members give up everything before a rebalance (the *eager* protocol). With the last one, they
continue to consume, and give up only the partitions that they lose (KIP-429). So the leader must not assign a partition
to a new owner while its old owner still consumes it. The leader leaves the partition out of the assignment. The old
owner notices this, stops consuming, and joins again. In that second rebalance the partition is free.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import cycle
from typing import NamedTuple

from minibroker.groups.server_assignors import MemberSpec, Partitions, assign_range, assign_uniform, members_in_order
from minibroker.segments.checkpoint import TopicPartition

NO_GENERATION = -1


class Subscriber(NamedTuple):
    """A member as the leader sees it. `owned` are the partitions that it owned in `generation`."""

    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    instance_id: str | None = None


Subscribers = Mapping[str, Subscriber]
Counts = Mapping[str, int]
Assigned = dict[str, list[TopicPartition]]


def range_assignor(members: Subscribers, counts: Counts) -> Assigned:
    """Divide each topic into one run of partitions for each subscriber."""
    return _listed(assign_range(_specs(members, {}), counts))


def round_robin_assignor(members: Subscribers, counts: Counts) -> Assigned:
    """Give each partition to the next member in order, skipping members that do not subscribe to its topic."""
    assigned: Assigned = {member_id: [] for member_id in members}
    turns = cycle(members_in_order(_specs(members, {})))
    for partition in _subscribed_partitions(members, counts):
        taker = next(member_id for member_id in turns if partition.topic in members[member_id].topics)
        assigned[taker].append(partition)
    return assigned


def sticky_assignor(members: Subscribers, counts: Counts) -> Assigned:
    """Balance the members. Each one keeps as many of its partitions as balance allows."""
    return _listed(assign_uniform(_specs(members, _owners(members, counts)), counts))


def cooperative_sticky_assignor(members: Subscribers, counts: Counts) -> Assigned:
    """Like the sticky assignor, but without the partitions that another member has yet to give up."""
    in_use: dict[TopicPartition, set[str]] = {}
    for member_id, member in members.items():
        for partition in member.owned:
            in_use.setdefault(partition, set()).add(member_id)
    assigned = sticky_assignor(members, counts)
    return {
        member_id: [it for it in partitions if it not in in_use or member_id in in_use[it]]
        for member_id, partitions in assigned.items()
    }


def _subscribed_partitions(members: Subscribers, counts: Counts) -> list[TopicPartition]:
    topics = {topic for member in members.values() for topic in member.topics if topic in counts}
    return [TopicPartition(topic, number) for topic in sorted(topics) for number in range(counts[topic])]


def _owners(members: Subscribers, counts: Counts) -> dict[TopicPartition, str]:
    """The owner of each partition that is still subscribed to.

    A member that missed a rebalance may claim a partition that another member owns by now. The claim with the latest
    generation counts. If two claims have the same generation, neither counts.
    """
    best: dict[TopicPartition, tuple[int, str | None]] = {}
    for member_id, member in members.items():
        for partition in set(member.owned):
            if partition.topic not in member.topics or partition.partition >= counts.get(partition.topic, 0):
                continue
            generation, _owner = best.get(partition, (NO_GENERATION - 1, None))
            if member.generation > generation:
                best[partition] = member.generation, member_id
            elif member.generation == generation:
                best[partition] = generation, None
    return {partition: owner for partition, (_generation, owner) in best.items() if owner is not None}


def _specs(members: Subscribers, owners: Mapping[TopicPartition, str]) -> dict[str, MemberSpec[str]]:
    owned: dict[str, dict[str, set[int]]] = {member_id: {} for member_id in members}
    for (topic, number), member_id in owners.items():
        owned[member_id].setdefault(topic, set()).add(number)
    return {
        member_id: MemberSpec(frozenset(member.topics), _frozen(owned[member_id]), member.instance_id)
        for member_id, member in members.items()
    }


def _frozen(owned: Mapping[str, Iterable[int]]) -> Partitions[str]:
    return {topic: frozenset(numbers) for topic, numbers in owned.items()}


def _listed(assigned: Mapping[str, Partitions[str]]) -> Assigned:
    return {
        member_id: [TopicPartition(topic, number) for topic in sorted(topics) for number in sorted(topics[topic])]
        for member_id, topics in assigned.items()
    }


ClientAssignor = Callable[[Subscribers, Counts], Assigned]

CLIENT_ASSIGNORS: Mapping[str, ClientAssignor] = {
    "range": range_assignor,
    "roundrobin": round_robin_assignor,
    "sticky": sticky_assignor,
    "cooperative-sticky": cooperative_sticky_assignor,
}
"""The assignors by the names under which clients offer them in JoinGroup."""
