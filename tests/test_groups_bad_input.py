"""Bad input for groups, on a bare socket: each kind gets a clear answer, and other groups do not notice.

After each test, groups that were there all the time read and commit without a rebalance, the broker has logged no
traceback, and its memory is back to what it was.
"""

import os
import random
import time
from collections.abc import Iterator

import groups_raw as raw
import pytest
from brokers import IS_OURS, Broker, eventually, unique
from cases import case
from clients_raw import Batch, Connection, i32, produce, record, settles, string
from clients_stock import Message, admin, confluent_write, create_topic
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from groups_crews import Crew, crews_of_each_kind, poll_until
from groups_raw import GroupConnection
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition
from kafka.structs import OffsetAndMetadata
from proxy import Proxy
from test_clients_fuzz import damaged, shoot

pytest_plugins = ["groups_fixtures"]

MIB = 1 << 20
GROWTH_MAX = 64 * MIB
PARTITIONS = 2
GARBAGE = (b"", b"\x00", b"\xff" * 7, b"\x00\x01\x7f\xff\xff\xff", b"\x00\x03" + b"\x00" * 3, b"\x80\x00" + b"x" * 100)
MANY = 10_000
CONNECTIONS = 300
INVALID_TOPIC = 17
GROUP_APIS = (*range(8, 17), 42, 47, 68, 69)
SECONDS = float(os.environ.get("MINIBROKER_FUZZ_S", "2"))
SEED = int(os.environ.get("MINIBROKER_FUZZ_SEED", "3"))


@pytest.fixture(scope="module")
def topic(grouped: Broker) -> str:
    return create_topic(grouped.address, unique("bad"), PARTITIONS)


@pytest.fixture(scope="module")
def bystanders(grouped: Broker) -> Iterator[dict[str, Crew]]:
    """Groups of every kind that read and commit."""
    topic = create_topic(grouped.address, unique("bystander"), PARTITIONS)
    with crews_of_each_kind(grouped.address, [topic], unique) as crews:
        for crew in crews.values():
            crew.hire()
        go_on(grouped, crews)
        yield crews


def go_on(grouped: Broker, crews: dict[str, Crew]) -> None:
    """Let all groups read and commit one more record of each partition."""
    (topic,) = {it.topics[0] for it in crews.values()}
    for partition in range(PARTITIONS):
        confluent_write(grouped.address, topic, [Message(b"x")], partition=partition, **{"linger.ms": 0})
    # The crews have read the same number of records.
    read = max(sum(it.history.next.values()) for it in crews.values()) // PARTITIONS
    wanted = {(topic, partition): read + 1 for partition in range(PARTITIONS)}
    poll_until(
        [*crews.values()], lambda: all(it.history.has_read(wanted) for it in crews.values()), "the others read on"
    )


@pytest.fixture(autouse=True)
def _other_groups_are_not_disturbed(grouped: Broker, bystanders: dict[str, Crew]) -> Iterator[None]:
    before = grouped.resident_bytes()
    changes = {kind: list(crew.members[0].changes) for kind, crew in bystanders.items()}
    yield
    assert grouped.is_alive(), grouped.log()[-4000:]
    go_on(grouped, bystanders)
    for kind, crew in bystanders.items():
        with case(kind):
            assert crew.members[0].changes == changes[kind]
            assert crew.history.is_well, crew.history.text()
            assert not crew.history.errors, crew.history.text()
    assert not grouped.complaints(), grouped.complaints()
    settles(grouped, before, GROWTH_MAX)


@pytest.fixture
def connection(grouped: Broker) -> Iterator[GroupConnection]:
    with GroupConnection(grouped) as one:
        yield one


@pytest.mark.skipif(not IS_OURS, reason="Kafka does not answer a join whose subscription it cannot decode")
def test_subscriptions_and_assignments_are_opaque(connection: GroupConnection, topic: str) -> None:
    """Where the broker does look into a subscription, it is not disturbed by one that it cannot read."""
    for number, data in enumerate(GARBAGE):
        with case(data):
            group = unique("opaque")
            joined = connection.become_member(group, protocols=[("range", data)])
            assert joined.members == {joined.member_id: data}
            assignment = GARBAGE[number - 1]
            member = (group, joined.generation, joined.member_id)
            assert connection.sync(raw.sync(*member, [(joined.member_id, assignment)])) == (raw.NONE, assignment)
            assert connection.describe(group) == ("Stable", "consumer", [(data, assignment)])
            assert connection.commit(
                raw.commit(group, topic, [(0, 1)], generation=joined.generation, member_id=joined.member_id)
            ) == [raw.NONE]
            # A member of the new protocol would convert the group, for which its members must be understood.
            converted = connection.code_848(raw.heartbeat_848(group, "a member", topics=[topic]))
            assert converted == raw.GROUP_ID_NOT_FOUND
            assert connection.ask(raw.delete_offsets(group, topic, [0, 7, -1])).take("h") == raw.NONE


@pytest.mark.skipif(not IS_OURS, reason="Kafka stores offsets below -1, and answers unknown partitions first")
def test_commits_of_impossible_offsets_are_refused_one_by_one(connection: GroupConnection, topic: str) -> None:
    group = unique("offsets")
    offsets = [(0, -2), (0, -(2**63)), (PARTITIONS, 1), (-1, 1), (2**31 - 1, 1), (1, 5)]
    unknown = raw.UNKNOWN_TOPIC_OR_PARTITION
    expected = [raw.INVALID_REQUEST, raw.INVALID_REQUEST, unknown, unknown, unknown, raw.NONE]
    assert connection.commit(raw.commit(group, topic, offsets)) == expected
    for name in ("no-such-topic", "", "../x", "a" * 30_000):
        with case(name[:20]):
            assert connection.commit(raw.commit(group, name, [(0, 1)])) == [unknown]
    too_long = raw.commit(group, topic, [(0, 1)], metadata="x" * 4097)
    assert connection.commit(too_long) == [raw.OFFSET_METADATA_TOO_LARGE]
    assert connection.fetch_offsets(raw.fetch_offsets(group, topic, [0, 1, 7, -1])) == (
        raw.NONE,
        {0: -1, 1: 5, 7: -1, -1: -1},
    )


def test_a_group_needs_a_name(connection: GroupConnection, topic: str) -> None:
    assert connection.join(raw.join("")).code == raw.INVALID_GROUP_ID
    assert connection.code(raw.sync("", 1, "x")) == raw.INVALID_GROUP_ID
    assert connection.code(raw.heartbeat("", 1, "x")) == raw.INVALID_GROUP_ID
    assert connection.code(raw.leave("", "x")) == raw.INVALID_GROUP_ID
    assert connection.code_848(raw.heartbeat_848("", "x", topics=[topic])) == raw.INVALID_REQUEST
    # Only offsets may be committed without one, as the first consumers did.
    assert connection.commit(raw.commit("", topic, [(0, 3)])) == [raw.NONE]
    assert connection.fetch_offsets(raw.fetch_offsets("", topic, [0])) == (raw.NONE, {0: 3})
    assert connection.delete("") == raw.NONE


def test_unknown_members_are_told_so_however_long_their_names_are(connection: GroupConnection, topic: str) -> None:
    group = unique("unknown")
    joined = connection.become_member(group)
    assert connection.sync(raw.sync(group, joined.generation, joined.member_id)) == (raw.NONE, b"")
    for member_id in ("x", "x" * 32_767, "ä" * 16_000):
        with case(member_id[:3], len(member_id)):
            assert connection.join(raw.join(group, member_id)).code == raw.UNKNOWN_MEMBER_ID
            assert connection.code(raw.sync(group, 1, member_id)) == raw.UNKNOWN_MEMBER_ID
            assert connection.code(raw.heartbeat(group, 1, member_id)) == raw.UNKNOWN_MEMBER_ID
            assert connection.code(raw.leave(group, member_id)) == raw.UNKNOWN_MEMBER_ID
            refused = raw.commit(group, topic, [(0, 1)], generation=1, member_id=member_id)
            assert connection.commit(refused) == [raw.UNKNOWN_MEMBER_ID]
    new = unique("unknown")
    assert connection.code_848(raw.heartbeat_848(new, "member", topics=[topic])) == raw.NONE
    for member_id in ("x", "x" * 32_767):
        with case("KIP-848", len(member_id)):
            assert connection.code_848(raw.heartbeat_848(new, member_id, 1)) == raw.UNKNOWN_MEMBER_ID
    assert connection.commit(raw.commit(group, topic, [(0, 1)])) == [raw.UNKNOWN_MEMBER_ID]
    stale = raw.commit(group, topic, [(0, 1)], generation=joined.generation - 1, member_id=joined.member_id)
    assert connection.commit(stale) == [raw.ILLEGAL_GENERATION]
    assert connection.code(raw.heartbeat(group, joined.generation, joined.member_id)) == raw.NONE


def test_an_assignment_that_fits_into_no_record_is_refused_and_the_group_goes_on(connection: GroupConnection) -> None:
    group = unique("large")
    joined = connection.become_member(group)
    large = [(joined.member_id, b"x" * (2 * MIB))]
    code, assignment = connection.sync(raw.sync(group, joined.generation, joined.member_id, large))
    assert (code, assignment) == (raw.UNKNOWN_SERVER_ERROR, b"")
    again = connection.join(raw.join(group, joined.member_id))
    assert (again.code, again.generation) == (raw.NONE, joined.generation + 1)
    small = [(joined.member_id, b"x")]
    assert connection.sync(raw.sync(group, again.generation, joined.member_id, small)) == (raw.NONE, b"x")


def test_ten_thousand_joins_without_a_sync_hold_nobody_up(grouped: Broker, connection: GroupConnection) -> None:
    # From version 4 on, a member must join twice, and most of these do not. The session lets the group forget them.
    group = unique("pending")
    for _ in range(MANY):
        connection.send(raw.join(group, session_ms=1000))
    codes = {connection.receive_joined().code for _ in range(MANY)}
    assert codes == {raw.MEMBER_ID_REQUIRED}
    joined = connection.become_member(group, session_ms=10_000)
    assert (joined.code, joined.generation) == (raw.NONE, 1)
    # Before, each is a member at once, and its answer waits until the others have joined again, which they never do.
    crowd = unique("crowd")
    for _ in range(CONNECTIONS):
        with Connection(grouped) as other:
            other.send(raw.join(crowd, version=3, session_ms=1000, rebalance_ms=1000))
    assert connection.code(raw.heartbeat(group, 1, joined.member_id)) == raw.NONE
    # They send no heartbeats, so nobody is left in the end.
    eventually(lambda: connection.describe(crowd)[0] == "Empty", "all have been removed", seconds=30)
    assert connection.code(raw.heartbeat(group, 1, joined.member_id)) == raw.NONE


def test_a_member_that_never_syncs_is_removed(connection: GroupConnection, grouped: Broker) -> None:
    """Its heartbeats do not help: the other members wait for its sync."""
    group = unique("silent")
    joined = connection.become_member(group, rebalance_ms=500)
    beat = raw.heartbeat(group, joined.generation, joined.member_id)
    assert connection.code(beat) == raw.NONE
    eventually(lambda: connection.code(beat) == raw.UNKNOWN_MEMBER_ID, "it is removed")
    with GroupConnection(grouped) as other:
        assert other.become_member(group).code == raw.NONE


def test_a_name_that_is_too_long_for_a_record_ends_the_connection(grouped: Broker, topic: str) -> None:
    """A compact string could have more than 32,767 bytes, but the keys of records could not. Kafka does the same."""
    longest = unique("long").ljust(32_767, "g")
    with GroupConnection(grouped) as connection:
        assert connection.become_member(longest).code == raw.NONE
    name = "g" * 40_000
    for frame in (
        raw.heartbeat_848(name, "member", topics=[topic]),
        raw.heartbeat_848(unique("long"), name, topics=[topic]),
        raw.heartbeat_848(unique("long"), "member", topics=[name]),
        raw.heartbeat_848(unique("long"), "member", regex=name),
    ):
        with GroupConnection(grouped) as connection:
            connection.send(frame)
            assert connection.is_hung_up()


def test_a_subscription_of_a_hundred_thousand_topics_is_taken_or_refused(connection: GroupConnection) -> None:
    # At most 20,000 elements are decoded, and the record of a member must fit into the log.
    for count, size, expected in ((19_000, 6, raw.NONE), (19_000, 100, raw.UNKNOWN_SERVER_ERROR)):
        with case(count, size):
            names = [f"{number:0{size}}" for number in range(count)]
            assert connection.code_848(raw.heartbeat_848(unique("many"), "member", topics=names)) == expected
    # In the classic protocol the subscription is opaque bytes.
    group = unique("many")
    metadata = b"\x00\x00" + i32(100_000) + b"".join(string(f"{it:06}") for it in range(100_000)) + i32(-1)
    joined = connection.become_member(group, protocols=[("range", metadata)])
    assert joined.members == {joined.member_id: metadata}
    assert connection.sync(raw.sync(group, joined.generation, joined.member_id)) == (raw.NONE, b"")
    # A request with more elements than may be decoded ends its connection.
    names = [f"{number:06}" for number in range(100_000)]
    with pytest.raises(AssertionError, match="the broker hung up instead of answering"):
        connection.code_848(raw.heartbeat_848(unique("many"), "member", topics=names))


def test_expressions_that_make_other_engines_hang_are_answered_at_once(connection: GroupConnection) -> None:
    for regex, expected in (
        ("(a+)+(a+)+(a+)+(a+)+$", raw.NONE),
        ("(a|a)*" * 1000, raw.NONE),
        ("(", raw.INVALID_REGULAR_EXPRESSION),
        ("a{1000}{1000}", raw.INVALID_REGULAR_EXPRESSION),
        ("\\1", raw.INVALID_REGULAR_EXPRESSION),
    ):
        with case(regex[:30]):
            assert connection.code_848(raw.heartbeat_848(unique("regex"), "member", regex=regex)) == expected


def test_heartbeats_that_make_no_sense_are_refused(connection: GroupConnection, topic: str) -> None:
    group = unique("nonsense")
    for frame, expected in (
        (raw.heartbeat_848(group, "member", 7, topics=[topic]), raw.GROUP_ID_NOT_FOUND),
        (raw.heartbeat_848(group, "member", -3, topics=[topic]), raw.INVALID_REQUEST),
        (raw.heartbeat_848(group, "", topics=[topic]), raw.INVALID_REQUEST),
        (raw.heartbeat_848(group, "member", topics=None), raw.INVALID_REQUEST),
        (raw.heartbeat_848(group, "member", topics=[topic], owned=None), raw.INVALID_REQUEST),
    ):
        assert connection.code_848(frame) == expected
    assert group not in connection.groups()


def test_clients_may_not_write_to_the_topic_of_groups(connection: GroupConnection) -> None:
    for data in (Batch(record(b"x", b"\x00\x01")).encode(), Batch(record(b"x")).encode()):
        assert connection.produce(produce("__consumer_offsets", data)).code == INVALID_TOPIC


def record_requests(grouped: Broker, topic: str) -> list[bytes]:
    """One request of every API and version of groups that stock clients use, as they send it."""
    with Proxy(grouped.address) as proxy:
        client = admin(proxy.address)
        with crews_of_each_kind(proxy.address, [topic], unique) as crews:
            for kind, crew in crews.items():
                crew.hire(instance_id="static" if kind == "range" else None)
            go_on(grouped, crews)
            names = [crew.group for crew in crews.values()]
            for group in names:
                client.describe_consumer_groups([group])[group].result(30)
                client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
            client.list_consumer_groups().result(30)
            for group in names:
                with pytest.raises(KafkaException):
                    client.delete_consumer_groups([group])[group].result(30)
        python = KafkaConsumer(bootstrap_servers=proxy.address, group_id=unique("python"))
        python.commit({PythonTopicPartition(topic, 0): OffsetAndMetadata(1, "", -1)})
        python.close()
        distinct = {(it.api_key, it.api_version, len(it.request) // 100): it.request for it in proxy.requests}
    return [request for (key, *_), request in sorted(distinct.items()) if key in GROUP_APIS]


def test_damaged_requests_of_groups_do_no_harm(grouped: Broker) -> None:
    topic = create_topic(grouped.address, unique("damaged"), PARTITIONS)
    requests = record_requests(grouped, topic)
    assert {int.from_bytes(it[:2]) for it in requests} >= {8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 68}
    chance = random.Random(SEED)
    deadline, count = time.monotonic() + SECONDS, 0
    while time.monotonic() < deadline:
        shoot(grouped, [damaged(chance, chance.choice(requests)) for _ in range(5)])
        count += 1
        assert grouped.is_alive(), f"dead after {count} connections:\n{grouped.log()[-4000:]}"
    print(f"{count} connections, {len(requests)} kinds of requests")
    assert count > 10, "too slow to mean anything"
