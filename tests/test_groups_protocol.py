"""The protocol of classic groups on a bare socket: what no consumer shows, and traps that other brokers stepped into.

The numbers are those of the list of traps in the design notes.
"""

import itertools
from collections.abc import Iterator

import groups_raw as raw
import pytest
from brokers import QUICK_UPKEEP, Broker, StartBroker, eventually, unique
from cases import case
from clients_stock import create_topic
from groups_crews import QUICK_GROUPS
from groups_raw import GroupConnection

pytest_plugins = ["clients_fixtures", "groups_fixtures"]

QUICK_COMPACTION = ("log.roll.ms=500", "log.cleaner.max.compaction.lag.ms=500", "log.cleaner.min.cleanable.ratio=0.01")


@pytest.fixture
def connection(grouped: Broker) -> Iterator[GroupConnection]:
    with GroupConnection(grouped) as one:
        yield one


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [
        # Connect's workers, the schema registry of Karapace, and something that nobody has written yet.
        ("connect", [("sessioned", b"\x00\x02url"), ("compatible", b"\x00\x01url"), ("default", b"\x00\x00url")]),
        ("sr", [("v0", b'{"version":1,"host":"127.0.0.1","port":8081,"master_eligibility":true}')]),
        ("\N{SNOWMAN}", [("", b"\xff\x00")]),
    ],
)
def test_groups_of_other_kinds_agree_on_whatever_they_want(
    grouped: Broker, connection: GroupConnection, protocol_type: str, protocols: list[tuple[str, bytes]]
) -> None:
    group, (name, metadata) = unique("kind"), protocols[0]
    settings = {"protocol_type": protocol_type, "protocols": protocols}
    first = connection.become_member(group, **settings)
    assert (first.code, first.protocol, first.leader) == (raw.NONE, name, first.member_id)
    assert first.members == {first.member_id: metadata}
    with GroupConnection(grouped) as other:
        refused = other.join(raw.join(group, protocol_type="consumer", protocols=protocols))
        assert refused.code == raw.INCONSISTENT_GROUP_PROTOCOL
        asked = other.join(raw.join(group, **settings))  # type: ignore[arg-type]
        other.send(raw.join(group, asked.member_id, **settings))  # type: ignore[arg-type]
        beat = raw.heartbeat(group, first.generation, first.member_id)
        eventually(lambda: connection.code(beat) == raw.REBALANCE_IN_PROGRESS, "the first must join again")
        leader = connection.join(raw.join(group, first.member_id, **settings))  # type: ignore[arg-type]
        follower = other.receive_joined()
        assert leader.members == {first.member_id: metadata, asked.member_id: metadata}
        assert (follower.leader, follower.members) == (first.member_id, {})
        assert follower.generation == leader.generation == first.generation + 1
        other.send(raw.sync(group, follower.generation, asked.member_id))
        given = [(first.member_id, b"\x00lead"), (asked.member_id, b"\xfffollow")]
        assert connection.sync(raw.sync(group, leader.generation, first.member_id, given)) == (raw.NONE, b"\x00lead")
        assert other.receive_synced() == (raw.NONE, b"\xfffollow")
        state, kind, members = connection.describe(group)
        assert (state, kind) == ("Stable", protocol_type)
        assert sorted(members) == sorted([(metadata, b"\x00lead"), (metadata, b"\xfffollow")])


def test_the_id_that_a_member_is_given_is_known_when_it_joins_again(connection: GroupConnection) -> None:
    """Trap 16. The answer to the first join is an error, and its id must be kept all the same."""
    group = unique("trap")
    first = connection.join(raw.join(group))
    assert first.code == raw.MEMBER_ID_REQUIRED
    assert first.member_id.startswith("raw-")
    again = connection.join(raw.join(group, first.member_id))
    assert (again.code, again.member_id, again.generation) == (raw.NONE, first.member_id, 1)
    # A join whose answer was lost is sent again.
    repeated = connection.join(raw.join(group, first.member_id))
    assert (repeated.code, repeated.generation) == (raw.NONE, 1)


def test_a_member_that_the_leader_leaves_out_gets_an_empty_assignment(connection: GroupConnection) -> None:
    """Trap 15. It must not wait for an assignment, and get no error."""
    group = unique("trap")
    joined = connection.become_member(group)
    assert connection.sync(raw.sync(group, joined.generation, joined.member_id)) == (raw.NONE, b"")
    assert connection.describe(group)[0] == "Stable"


def test_offsets_survive_compaction_and_a_crash_and_a_deleted_group_does_not(start: StartBroker) -> None:
    """Traps 4, 26 and 32. From its first answer on, a new coordinator has the right offsets or says that it loads."""
    broker = start(*QUICK_GROUPS, *QUICK_UPKEEP, *QUICK_COMPACTION, "offsets.topic.num.partitions=1")
    topic = create_topic(broker.address, unique("trap"), 2)
    kept, deleted, unknown = unique("kept"), unique("deleted"), unique("unknown")
    with GroupConnection(broker) as connection:
        offsets = itertools.count()

        def is_compacted() -> bool:
            """Commit once more, because only an append begins a new segment, and only an old segment is compacted."""
            assert connection.commit(raw.commit(kept, topic, [(0, next(offsets))])) == [raw.NONE]
            first = broker.data / "__consumer_offsets-0" / f"{0:020}.log"
            return first.stat().st_size < 1000

        assert connection.commit(raw.commit(deleted, topic, [(0, 5), (1, 5)])) == [raw.NONE, raw.NONE]
        for _ in range(100):
            is_compacted()
        assert connection.delete(deleted) == raw.NONE
        assert connection.delete(deleted) == raw.GROUP_ID_NOT_FOUND
        eventually(is_compacted, "the first segment is compacted")
        last = next(offsets) - 1
        with GroupConnection(broker) as other:
            member = other.become_member(kept)
            assert other.sync(raw.sync(kept, member.generation, member.member_id, [(member.member_id, b"x")]))[0] == 0
    broker.kill()
    broker.restart()
    with GroupConnection(broker) as connection:
        assert connection.fetch_offsets(raw.fetch_offsets(kept, topic, [0, 1])) == (raw.NONE, {0: last, 1: -1})
        assert connection.groups() == {kept}
        for group in (deleted, unknown):
            with case(group):
                assert connection.fetch_offsets(raw.fetch_offsets(group, topic, [0])) == (raw.NONE, {0: -1})
        # The member of the last coordinator goes on, and so do its commits.
        assert connection.code(raw.heartbeat(kept, member.generation, member.member_id)) == raw.NONE
        going = raw.commit(kept, topic, [(0, last + 1)], generation=member.generation, member_id=member.member_id)
        assert connection.commit(going) == [raw.NONE]
