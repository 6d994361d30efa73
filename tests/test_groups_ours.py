"""Our own consumer in groups of a real broker: auto-commit, patterns, and the requests of the administration."""

import time
from collections import Counter
from collections.abc import Iterator

import pytest
from brokers import Broker, eventually, unique
from cases import case
from clients_stock import Message, confluent_write, create_topic
from proxy import Proxy

from minibroker.clients import group_admin
from minibroker.clients.blocking import Client
from minibroker.clients.errors import CommitRefused, InvalidSetting
from minibroker.clients.group_consumer import GroupConsumer, GroupProtocol, OffsetReset
from minibroker.clients.membership import MemberConfig
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.apis import ApiKey

pytest_plugins = ["groups_fixtures"]

PROTOCOLS = tuple(GroupProtocol)
NEVER_MS = 3_600_000


@pytest.fixture
def client(grouped: Broker) -> Iterator[Client]:
    with Client(grouped.address, metadata_max_age_ms=200) as it:
        yield it


def filled(grouped: Broker, count: int = 10, *, partitions: int = 1, name: str = "auto") -> str:
    """A topic with so many records in each partition."""
    topic = create_topic(grouped.address, unique(name), partitions)
    for partition in range(partitions):
        confluent_write(grouped.address, topic, [Message(b"x")] * count, partition=partition)
    return topic


def config_of(group: str, topic: str | None = None, **settings: object) -> MemberConfig:
    topics = () if topic is None else (topic,)
    return MemberConfig(group, topics, heartbeat_interval_ms=200, session_timeout_ms=3000, **settings)  # type: ignore[arg-type]


def consumer_of(client: Client, config: MemberConfig, protocol: GroupProtocol, interval_ms: int) -> GroupConsumer:
    return GroupConsumer(
        client,
        config,
        protocol=protocol,
        offset_reset=OffsetReset.EARLIEST,
        auto_commit_interval_ms=interval_ms,
        max_wait_ms=50,
    )


def read(consumer: GroupConsumer, count: int, seconds: float = 60) -> Counter[str]:
    """Poll until so many records have come; return how many there are of each topic."""
    seen: Counter[str] = Counter()
    deadline = time.monotonic() + seconds
    while seen.total() < count:
        assert time.monotonic() < deadline, f"{seen} after {seconds} s"
        for fetched in consumer.poll(100):
            seen[fetched.topic] += len(list(fetched))
    return seen


def test_a_later_poll_commits_what_an_earlier_one_has_returned(grouped: Broker, client: Client) -> None:
    topic = filled(grouped)
    for protocol in PROTOCOLS:
        with case(protocol.value), consumer_of(client, config_of(unique("auto"), topic), protocol, 100) as consumer:
            read(consumer, 10)
            group = consumer.group_id

            def is_committed(consumer: GroupConsumer = consumer, group: str = group) -> bool:
                consumer.poll(50)
                return group_admin.committed_offsets(client, group) == {TopicPartition(topic, 0): 10}

            eventually(is_committed, "the offset is committed")


def test_close_commits_with_auto_commit_and_not_without(grouped: Broker, client: Client) -> None:
    topic = filled(grouped)
    for protocol in PROTOCOLS:
        for is_enabled, expected in ((True, {TopicPartition(topic, 0): 10}), (False, {})):
            with case(protocol.value, is_enabled):
                group = unique("close")
                with GroupConsumer(
                    client,
                    config_of(group, topic),
                    protocol=protocol,
                    offset_reset=OffsetReset.EARLIEST,
                    enable_auto_commit=is_enabled,
                    auto_commit_interval_ms=0,
                ) as consumer:
                    read(consumer, 10)
                assert group_admin.committed_offsets(client, group) == expected


def test_offsets_are_committed_before_their_partitions_are_given_up(grouped: Broker, client: Client) -> None:
    for protocol in PROTOCOLS:
        topic, group = filled(grouped, partitions=2, name="revoked"), unique("revoked")
        with case(protocol.value), consumer_of(client, config_of(group, topic), protocol, NEVER_MS) as first:
            read(first, 20)
            with consumer_of(client, config_of(group, topic), protocol, NEVER_MS) as second:

                def is_shared(one: GroupConsumer = first, other: GroupConsumer = second) -> bool:
                    assert not one.poll(50), "a record was read again"
                    assert not other.poll(50), "a record was read again"
                    return [len(one.assignment), len(other.assignment)] == [1, 1]

                eventually(is_shared, "each has a partition")
                [taken] = second.assignment
                assert group_admin.committed_offsets(client, group)[taken] == 10


def test_a_member_that_was_removed_commits_nothing_even_in_an_empty_group(grouped: Broker, client: Client) -> None:
    """The coordinator would take a commit without a generation for one of an administrator."""
    topic = filled(grouped)
    for protocol in PROTOCOLS:
        with case(protocol.value):
            group = unique("removed")
            config = config_of(group, topic, max_poll_interval_ms=1000)
            with consumer_of(client, config, protocol, NEVER_MS) as consumer:
                read(consumer, 10)
                eventually(lambda g=group: not group_admin.describe_group(client, g).members, "it has left")  # type: ignore[misc]
                with pytest.raises(CommitRefused):
                    consumer.commit()
            assert group_admin.committed_offsets(client, group) == {}


def test_an_interval_that_cannot_work_is_refused(client: Client) -> None:
    with pytest.raises(InvalidSetting):
        GroupConsumer(client, config_of("g", "t"), auto_commit_interval_ms=-1)


# Patterns.


def test_a_pattern_selects_topics_by_their_whole_names(grouped: Broker, client: Client) -> None:
    stem = unique("pattern")
    topics = [filled(grouped, name=f"{stem}-a"), filled(grouped, name=f"{stem}-b")]
    filled(grouped, name=f"x{stem}-a")
    for protocol in PROTOCOLS:
        with case(protocol.value):
            config = config_of(unique("pattern"), pattern=f"{stem}-[ab].*")
            with consumer_of(client, config, protocol, NEVER_MS) as consumer:
                assert read(consumer, 20) == dict.fromkeys(topics, 10)
                assert [it.topic for it in consumer.assignment] == sorted(topics)


def test_a_classic_member_with_a_pattern_finds_a_topic_that_is_created_later(grouped: Broker, client: Client) -> None:
    stem = unique("later")
    first = filled(grouped, name=f"{stem}-a")
    config = config_of(unique("later"), pattern=f"{stem}-.*")
    with consumer_of(client, config, GroupProtocol.CLASSIC, NEVER_MS) as consumer:
        assert read(consumer, 10) == {first: 10}
        second = filled(grouped, name=f"{stem}-b")
        assert read(consumer, 10) == {second: 10}


# Administration.


def test_a_broker_is_asked_once_for_all_of_its_groups(grouped: Broker, client: Client) -> None:
    topic = filled(grouped)
    partition = TopicPartition(topic, 0)
    simple = [unique("together") for _ in range(5)]
    for number, group in enumerate(simple):
        group_admin.commit_offsets(client, group, {partition: number})
    member = consumer_of(client, config_of(unique("together"), topic), GroupProtocol.CONSUMER, NEVER_MS)
    with Proxy(grouped.address) as proxy, Client(proxy.address) as watched, member:
        read(member, 10)
        found = {it.group_id: it for it in group_admin.describe_all(watched)}
        offsets = group_admin.committed_offsets_of_all(watched, found.values())
        asked = Counter(ApiKey(it.api_key) for it in proxy.requests)
    assert {it: (found[it].kind, offsets[it]) for it in simple} == {
        group: ("classic", {partition: number}) for number, group in enumerate(simple)
    }
    assert [it.partitions for it in found[member.group_id].members] == [[partition]]
    once = {ApiKey.LIST_GROUPS, ApiKey.DESCRIBE_GROUPS, ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.OFFSET_FETCH}
    assert {key: asked[key] for key in once} == dict.fromkeys(once, 1)
