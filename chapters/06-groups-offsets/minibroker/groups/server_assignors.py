"""The assignors of the coordinator: `uniform` and `range` (KIP-848). A pure module.

An assignor is a function from members and partition counts to an assignment. Equal input gives equal output, whatever
the order of the members is. A partition of a subscribed topic goes to exactly one member that subscribes to it.

`range` divides each topic into runs of partitions. It ignores which partitions members own. Topics with equal counts
and equal subscribers are divided at the same places. So a member gets the same partitions of each of these topics: they
are *co-partitioned*.

`uniform` gives all members the same number of partitions, or one more, and moves as few partitions as that allows:

    7 partitions, 3 members: the quota is 2, and one member gets 3

              a         b         c
    owned     0 1 2 3   4 5 6     -         a and b own more than 2; a comes first and may keep 3
    kept      0 1 2     4 5       -
    filled    0 1 2     4 5       3 6       free partitions go to members below their share, in order

If the subscriptions differ, there is no quota. Free partitions go to the subscriber with the fewest partitions. Then
partitions move from members with many to members with few, until no single move helps or after 16 rounds.

The functions work for topic ids, as the coordinator uses them, and for topic names, as `client_assignors` does.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

BALANCING_ROUNDS_MAX = 16

Topic = TypeVar("Topic", str, bytes)
Partitions = Mapping[Topic, frozenset[int]]
"""Partitions by topic. No topic has an empty set."""


class MemberSpec(NamedTuple, Generic[Topic]):
    """A member as an assignor sees it. `owned` are its partitions in the last assignment."""

    topics: frozenset[Topic]
    owned: Partitions[Topic] = MappingProxyType({})
    instance_id: str | None = None


Members = Mapping[str, MemberSpec[Topic]]
Counts = Mapping[Topic, int]


def assign_range(members: Members[Topic], counts: Counts[Topic]) -> dict[str, Partitions[Topic]]:
    """Divide each topic into one run of partitions for each subscriber. The first runs may be longer by one."""
    # Every member is in the result, also one that gets nothing. The members have the same order for every topic.
    assigned: dict[str, dict[Topic, frozenset[int]]] = {member_id: {} for member_id in members}
    for topic, subscribers in _subscribers(members_in_order(members), members, counts).items():
        for member_id, run in _runs(subscribers, counts[topic]):
            assigned[member_id][topic] = frozenset(run)
    return {**assigned}


def members_in_order(members: Members[Topic]) -> list[str]:
    """The ids of static members, ordered by instance id, which survives a restart; then those of dynamic members."""

    def key(member_id: str) -> tuple[bool, str, str]:
        instance_id = members[member_id].instance_id
        return instance_id is None, instance_id or "", member_id

    return sorted(members, key=key)


def _subscribers(order: Sequence[str], members: Members[Topic], counts: Counts[Topic]) -> dict[Topic, list[str]]:
    """The members that subscribe to each topic that exists, in order.

    Thousands of members usually have only a few different subscriptions. So topics that occur in the same subscriptions
    share one list.
    """
    numbers = {topics: number for number, topics in enumerate(dict.fromkeys(members[it].topics for it in order))}
    mixes = defaultdict(list)
    for topics, number in numbers.items():
        for topic in topics & counts.keys():
            mixes[topic].append(number)
    groups = [numbers[members[it].topics] for it in order]
    lists: dict[tuple[int, ...], list[str]] = {}
    for mix in set(map(tuple, mixes.values())):
        lists[mix] = [member_id for member_id, number in zip(order, groups, strict=True) if number in mix]
    return {topic: lists[tuple(mix)] for topic, mix in mixes.items()}


def _runs(subscribers: Sequence[str], count: int) -> Iterator[tuple[str, range]]:
    """Each subscriber that gets partitions of a topic, with its run of partitions."""
    # The runs follow each other, and the first ones may be longer by one. An empty run is left out.
    length, longer = divmod(count, len(subscribers))
    start = 0
    for number, member_id in enumerate(subscribers[:count]):
        end = start + length + (number < longer)
        yield member_id, range(start, end)
        start = end


def assign_uniform(members: Members[Topic], counts: Counts[Topic]) -> dict[str, Partitions[Topic]]:
    """Give every member about the same number of partitions, and move as few partitions as possible."""
    subscriptions = {member.topics for member in members.values()}
    if len(subscriptions) > 1:
        return _Mixed(members, counts).assign()
    topics = {topic: counts[topic] for topics in subscriptions for topic in sorted(topics) if topic in counts}
    return _assign_equal(members, topics)


# Equal subscriptions ------------------------------------------------------------------------------------------------


def _assign_equal(members: Members[Topic], counts: Counts[Topic]) -> dict[str, Partitions[Topic]]:
    """The uniform assignment of members that all subscribe to these topics."""
    order = sorted(members)
    shares = _shares(order, members, counts)
    kept = {it: _keep(members[it].owned, counts, share) for it, share in shares.items()}
    free = _Free(counts, kept.values())
    assigned = {}
    for member_id, share in shares.items():
        missing = share - _size(kept[member_id])
        assigned[member_id] = free.add_to(kept[member_id], missing) if missing else kept[member_id]
    return assigned


def _shares(order: Sequence[str], members: Members[Topic], counts: Counts[Topic]) -> dict[str, int]:
    """How many partitions each member gets: the quota, or one more. Members that own more than the quota come first."""
    if not order:
        return {}
    quota, longer = divmod(sum(counts.values()), len(order))
    above = {it for it in order if _size(members[it].owned, counts) > quota}
    ranked = chain((it for it in order if it in above), (it for it in order if it not in above))
    rank = {member_id: number for number, member_id in enumerate(ranked)}
    return {member_id: quota + (rank[member_id] < longer) for member_id in order}


def _size(partitions: Partitions[Topic], topics: Collection[Topic] | None = None) -> int:
    """The number of partitions, counting only `topics` if it is given."""
    if topics is None:
        return sum(map(len, partitions.values()))
    return sum(len(numbers) for topic, numbers in partitions.items() if topic in topics)


def _keep(owned: Partitions[Topic], topics: Mapping[Topic, object], share: int) -> Partitions[Topic]:
    """The first `share` owned partitions of these topics. Usually all are kept, and nothing is copied."""
    if _size(owned) <= share and owned.keys() <= topics.keys():
        return owned
    kept = {}
    for topic in sorted(owned):
        if topic in topics and share > 0:
            kept[topic] = owned[topic] if len(owned[topic]) <= share else frozenset(sorted(owned[topic])[:share])
            share -= len(kept[topic])
    return kept


class _Free(Generic[Topic]):
    """Partitions without an owner. Members take slices of them, in order."""

    def __init__(self, counts: Counts[Topic], kept: Iterable[Partitions[Topic]]) -> None:
        taken: dict[Topic, list[frozenset[int]]] = {topic: [] for topic in counts}
        for partitions in kept:
            for topic, numbers in partitions.items():
                taken[topic].append(numbers)
        # Topics and partitions are in reverse order, because removing from the end of a list is cheap.
        self._left: list[tuple[Topic, list[int]]] = []
        for topic in reversed(list(counts)):
            self._left.append((topic, sorted(set(range(counts[topic])).difference(*taken[topic]), reverse=True)))

    def add_to(self, kept: Partitions[Topic], count: int) -> Partitions[Topic]:
        """The kept partitions, and `count` free ones. There are enough, because the shares add up to all partitions."""
        filled = dict(kept)
        while count:
            topic, numbers = self._left[-1]
            taken = numbers[-count:]
            if taken:
                filled[topic] = filled[topic].union(taken) if topic in filled else frozenset(taken)
                del numbers[-count:]
                count -= len(taken)
            else:
                self._left.pop()
        return filled


# Mixed subscriptions ------------------------------------------------------------------------------------------------


class _Mixed(Generic[Topic]):
    """The uniform assignment of members with different subscriptions."""

    def __init__(self, members: Members[Topic], counts: Counts[Topic]) -> None:
        self._counts: Counts[Topic] = counts
        self._subscribers: dict[Topic, list[str]] = _subscribers(sorted(members), members, counts)
        # Topics with few subscribers come first, because they leave the least choice.
        self._topics: list[Topic] = sorted(self._subscribers, key=lambda topic: (len(self._subscribers[topic]), topic))
        self._assigned: dict[str, dict[Topic, set[int]]]
        self._assigned = {it: self._subscribed(member) for it, member in members.items()}
        self._loads: dict[str, int]
        self._loads = {it: sum(map(len, owned.values())) for it, owned in self._assigned.items()}

    def _subscribed(self, member: MemberSpec[Topic]) -> dict[Topic, set[int]]:
        topics = member.topics & self._counts.keys()
        return {topic: set(numbers) for topic, numbers in member.owned.items() if topic in topics}

    def assign(self) -> dict[str, Partitions[Topic]]:
        """Give away the free partitions, then move partitions until the members are balanced."""
        for topic in self._topics:
            self._fill(topic)
        for _round in range(BALANCING_ROUNDS_MAX):
            if not sum(self._even_out(topic) for topic in self._topics):
                break
        return {
            member_id: {topic: frozenset(numbers) for topic, numbers in owned.items() if numbers}
            for member_id, owned in self._assigned.items()
        }

    def _fill(self, topic: Topic) -> None:
        """Give the free partitions of a topic to the subscribers with the fewest partitions."""
        subscribers = self._subscribers[topic]
        owned = (self._assigned[it].get(topic, set()) for it in subscribers)
        free = sorted(set(range(self._counts[topic])).difference(*owned))
        if not free:
            return
        lightest = [(self._loads[it], it) for it in subscribers]
        heapq.heapify(lightest)
        for number in free:
            load, member_id = lightest[0]
            self._give(member_id, topic, number)
            heapq.heapreplace(lightest, (load + 1, member_id))

    def _give(self, member_id: str, topic: Topic, number: int) -> None:
        self._assigned[member_id].setdefault(topic, set()).add(number)
        self._loads[member_id] += 1

    def _even_out(self, topic: Topic) -> int:
        """Move partitions of a topic from members with many partitions to members with few. Return the number."""
        loads, moves = self._loads, 0
        owners = [it for it in self._subscribers[topic] if self._assigned[it].get(topic)]
        if max(loads[it] for it in owners) - min(map(loads.__getitem__, self._subscribers[topic])) < 2:
            return 0
        heaviest = [(-loads[it], it) for it in owners]
        lightest = [(loads[it], it) for it in self._subscribers[topic]]
        heapq.heapify(heaviest)
        heapq.heapify(lightest)
        while heaviest:
            load, giver = heaviest[0]
            least, taker = lightest[0]
            # A move changes the loads of two members. An entry with an old load is corrected when it is the first.
            if -load != loads[giver]:
                heapq.heapreplace(heaviest, (-loads[giver], giver))
            elif least != loads[taker]:
                heapq.heapreplace(lightest, (loads[taker], taker))
            elif loads[giver] - loads[taker] < 2:
                break
            else:
                self._move(topic, giver, taker)
                moves += 1
                if not self._assigned[giver][topic]:
                    heapq.heappop(heaviest)
        return moves

    def _move(self, topic: Topic, giver: str, taker: str) -> None:
        number = max(self._assigned[giver][topic])
        self._assigned[giver][topic].discard(number)
        self._loads[giver] -= 1
        self._give(taker, topic, number)


ServerAssignor = Callable[[Members[bytes], Counts[bytes]], dict[str, Partitions[bytes]]]

ASSIGNORS: Mapping[str, ServerAssignor] = {"uniform": assign_uniform, "range": assign_range}
"""The assignors by the names that clients ask for. `group.consumer.assignors` lists the allowed ones."""
