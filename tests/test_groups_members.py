"""Members of groups come, go, crash and restart: every partition has one owner, and no record is skipped.

The consumers are librdkafka's. Each test runs its story for every way to share partitions, side by side.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import clients_stock as stock
from brokers import Broker, eventually, unique
from cases import case
from confluent_kafka import OFFSET_INVALID
from confluent_kafka.admin import AdminClient, NewPartitions
from groups_crews import KINDS, WAIT_S_MAX, Child, Crew, committed, crews_of_each_kind, poll_until

pytest_plugins = ["groups_fixtures"]

PARTITIONS = 4
NONE = OFFSET_INVALID
T = TypeVar("T")


def fill(broker: Broker, topic: str, count: int, partitions: Sequence[int] = range(PARTITIONS)) -> None:
    """Write some records to each partition."""
    producer = stock.confluent_producer(broker.address)
    for partition in partitions:
        for _ in range(count):
            producer.produce(topic, b"x", partition=partition)
    assert producer.flush(stock.READ_S_MAX) == 0


def counts(topic: str, count: int, partitions: Sequence[int] = range(PARTITIONS)) -> dict[tuple[str, int], int]:
    return {(topic, it): count for it in partitions}


def share(crews: dict[str, Crew], owned: list[int]) -> None:
    """Wait until the members of each crew own so many partitions each, the fewest first."""
    poll_until([*crews.values()], lambda: all(it.owned() == owned for it in crews.values()), f"they own {owned}")


def read_all(crews: dict[str, Crew], wanted: dict[tuple[str, int], int]) -> None:
    poll_until(
        [*crews.values()], lambda: all(it.history.has_read(wanted) for it in crews.values()), f"all read {wanted}"
    )


def check(crews: dict[str, Crew], *, redelivered: bool = False) -> None:
    for kind, crew in crews.items():
        with case(kind):
            assert crew.history.is_well, crew.text()
            assert redelivered or crew.history.redelivered == 0, crew.text()
            assert crew.committed() == crew.history.acked


def test_members_come_and_go_and_every_partition_has_one_owner_at_a_time(grouped: Broker) -> None:
    """Groups of other names on the same topic are independent: each reads everything."""
    topic = stock.create_topic(grouped.address, unique("scale"), PARTITIONS)
    with crews_of_each_kind(grouped.address, [topic], unique) as crews:
        total = 0
        # One member, two, more members than partitions, and fewer again.
        for size, owned in ((1, [4]), (2, [2, 2]), (5, [0, 1, 1, 1, 1]), (3, [1, 1, 2]), (1, [4])):
            for crew in crews.values():
                while len(crew.members) > size:
                    crew.dismiss(crew.members[0])
                crew.hire(size - len(crew.members))
            # Records are read before, during and after each rebalance.
            fill(grouped, topic, 20)
            share(crews, owned)
            fill(grouped, topic, 20)
            total += 40
            read_all(crews, counts(topic, total))
        check(crews)


def test_members_that_are_killed_or_paused_lose_their_partitions_and_can_commit_no_more(grouped: Broker) -> None:
    """The next owner goes on at their last commits."""
    topic = stock.create_topic(grouped.address, unique("killed"), PARTITIONS)
    groups = {kind: unique(kind) for kind in KINDS}
    with (
        crews_of_each_kind(grouped.address, [topic], lambda kind: groups[kind]) as crews,
        children_of(grouped, topic, groups) as killed,
        children_of(grouped, topic, groups) as paused,
    ):
        pairs = {kind: (killed[kind], paused[kind]) for kind in KINDS}
        of_all(pairs, lambda pair: sorted(len(it.owned) for it in pair) == [2, 2], "each has two partitions")
        fill(grouped, topic, 10)
        of_all(pairs, lambda pair: pair[0].read | pair[1].read == counts(topic, 10), "they read")
        for pair in pairs.values():
            for child in pair:
                child.commit()
        of_all(pairs, lambda pair: pair[0].answers == pair[1].answers == ["committed"], "they commit")
        fill(grouped, topic, 10)
        of_all(pairs, lambda pair: pair[0].read | pair[1].read == counts(topic, 20), "they read on")
        for kind, pair in pairs.items():
            pair[0].kill()
            pair[1].pause()
            crews[kind].history.acked, crews[kind].history.next = counts(topic, 10), counts(topic, 10)
            crews[kind].hire()
        # Their sessions must end first. What they have not committed is read again, and nothing before.
        fill(grouped, topic, 10)
        read_all(crews, counts(topic, 30))
        # The paused ones wake up. Before they hear of anything, they commit less than the new owner has committed.
        for child in paused.values():
            child.commit()
            child.resume()
        of_all(paused, lambda child: child.answers[1:], "the commit is answered")
        for kind, child in paused.items():
            with case(kind):
                assert child.answers != ["committed", "committed"]
        check(crews)


@contextlib.contextmanager
def children_of(broker: Broker, topic: str, groups: Mapping[str, str]) -> Iterator[dict[str, Child]]:
    """A member of each group in a process of its own."""
    started = {kind: Child(broker.address, [topic], group, **KINDS[kind]) for kind, group in groups.items()}
    try:
        yield started
    finally:
        for child in started.values():
            child.kill()


def of_all(children: Mapping[str, T], holds: Callable[[T], object], what: str) -> None:
    for kind, it in children.items():
        with case(kind):
            eventually(functools.partial(holds, it), what, seconds=WAIT_S_MAX)


def test_a_static_member_restarts_and_the_others_do_not_notice(grouped: Broker) -> None:
    topic = stock.create_topic(grouped.address, unique("static"), PARTITIONS)
    with crews_of_each_kind(grouped.address, [topic], unique) as crews:
        for crew in crews.values():
            crew.hire(instance_id="one")
            crew.hire(instance_id="two")
        share(crews, [2, 2])
        fill(grouped, topic, 10)
        read_all(crews, counts(topic, 10))
        before = {kind: list(crew.members[1].changes) for kind, crew in crews.items()}
        owned = {kind: crew.members[0].owned.copy() for kind, crew in crews.items()}
        for crew in crews.values():
            crew.dismiss(crew.members[0])
            crew.members.insert(0, crew.hire(instance_id="one"))
            crew.members.pop()
        share(crews, [2, 2])
        fill(grouped, topic, 10)
        read_all(crews, counts(topic, 20))
        for kind, crew in crews.items():
            with case(kind):
                assert crew.members[1].changes == before[kind]
                assert crew.members[0].owned == owned[kind]
        check(crews)


def test_topics_may_appear_grow_and_disappear_while_a_group_reads_them(grouped: Broker) -> None:
    """The subscription is a regular expression. The classic client matches it, or the coordinator (KIP-848)."""
    prefix = unique("many")
    first = stock.create_topic(grouped.address, f"{prefix}.first", 2)
    stock.create_topic(grouped.address, unique("other"), 2)
    client: AdminClient = stock.admin(grouped.address)
    with crews_of_each_kind(grouped.address, [f"^{prefix}\\..*"], unique) as crews:
        classic = {kind: crew for kind, crew in crews.items() if kind != "consumer"}
        # A member may have an assignment that librdkafka has already given up: see `Member._on_assign`.
        crews["range"].is_orderly = False
        for crew in classic.values():
            crew.hire(2)
        share(classic, [1, 1])
        second = stock.create_topic(grouped.address, f"{prefix}.second", 2)
        # A coordinator looks for new topics every ten seconds, for which this test does not wait.
        crews["consumer"].hire(2)
        share(crews, [2, 2])
        client.create_partitions([NewPartitions(first, PARTITIONS)])[first].result(30)
        share(crews, [3, 3])
        fill(grouped, first, 10)
        fill(grouped, second, 10, range(2))
        read_all(crews, counts(first, 10) | counts(second, 10, range(2)))
        check(crews)
        client.delete_topics([second])[second].result(30)
        share(crews, [2, 2])
        fill(grouped, first, 10)
        read_all(crews, counts(first, 20))
        for kind, crew in crews.items():
            with case(kind):
                assert crew.history.is_well, crew.text()
                # The offsets of the deleted topic are gone.
                assert set(committed(grouped.address, crew.group, [*counts(second, 0, range(2))]).values()) == {NONE}
