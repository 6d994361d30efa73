"""Kafka's own consumers and its tools for groups against a cluster of ours: `make test-java`.

ClientCalls.java runs them all in one process. The name of this file keeps it out of `make test`.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from brokers import eventually, unique
from cases import case
from clients_stock import Message, confluent_write, create_topic
from groups_crews import QUICK_GROUPS
from java_calls import TOOLS, WAIT_S_MAX, Java, java_beside

PARTITIONS = 4
RECORDS = 20
TEXT = "größe {}\n"
KINDS: dict[str, dict[str, object]] = {
    "range": {"partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor"},
    "cooperative-sticky": {
        "partition.assignment.strategy": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
    },
    "consumer": {"group.protocol": "consumer"},
}
"""The ways of the Java client to share partitions. The classic ones take these times from the client."""
for _name in ("range", "cooperative-sticky"):
    KINDS[_name] |= {"session.timeout.ms": 6000, "heartbeat.interval.ms": 200}


class Member:
    """A consumer in the Java process."""

    def __init__(self, java: Java, group: str, settings: dict[str, object], **subscription: object) -> None:
        self.java = java
        self.name = unique("member")
        given = {
            "bootstrap.servers": java.bootstrap,
            "group.id": group,
            "client.id": self.name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "metadata.max.age.ms": 1000,
        }
        assert java.call("join", member=self.name, settings=given | settings, **subscription) == {}

    def look(self) -> dict[str, Any]:
        return self.java.call("look", member=self.name)

    @property
    def owned(self) -> list[str]:
        found: list[str] = self.look()["owned"]
        return found

    def commit(self, metadata: str = "") -> dict[str, Any]:
        return self.java.call("commit", member=self.name, metadata=metadata)

    def close(self) -> None:
        assert self.java.call("close", member=self.name) == {}


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Java]:
    """Three nodes, or one of another broker, and Kafka's clients beside them, for all tests of this module."""
    with java_beside(tmp_path_factory.mktemp("groups"), *QUICK_GROUPS) as it:
        yield it


def fill(java: Java, topic: str, count: int, *, first: int = 0) -> list[str]:
    """Write numbers to the partitions in turn; return them as they are read."""
    for partition in range(PARTITIONS):
        numbers = range(first + partition, first + count, PARTITIONS)
        confluent_write(java.bootstrap, topic, [Message(b"%d" % it) for it in numbers], partition=partition)
    return [str(it) for it in range(first, first + count)]


def new_topic(java: Java, prefix: str) -> str:
    return create_topic(java.bootstrap, unique(prefix), PARTITIONS)


def partitions_of(topic: str) -> list[str]:
    return [f"{topic}-{it}" for it in range(PARTITIONS)]


def await_shared(members: Sequence[Member], partitions: list[str]) -> None:
    """Wait until every partition has one owner, and the members have equally many."""

    def is_shared() -> bool:
        owned = [member.owned for member in members]
        counts = {len(it) for it in owned}
        return sorted(it for one in owned for it in one) == partitions and max(counts) - min(counts) <= 1

    eventually(is_shared, f"{len(members)} members share {partitions}", seconds=WAIT_S_MAX)


def await_read(members: Sequence[Member], expected: Sequence[str]) -> None:
    def read() -> list[int]:
        return sorted(int(it) for member in members for it in member.look()["read"])

    wanted = sorted(map(int, expected))
    eventually(lambda: len(read()) >= len(wanted), f"{len(wanted)} records are read", seconds=WAIT_S_MAX)
    assert read() == wanted


def await_refused(member: Member, error: str) -> None:
    eventually(lambda: member.look()["error"], f"a member ends with {error}", seconds=WAIT_S_MAX)
    assert error in member.look()["error"]


# The console consumer -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_console_consumer_goes_on_where_its_group_has_stopped(java: Java, protocol: str) -> None:
    topic, group = new_topic(java, "console"), unique("console")
    written = fill(java, topic, RECORDS)
    first = java.console(topic, group, 7, f"group.protocol={protocol}")
    rest = java.console(topic, group, RECORDS - 7, f"group.protocol={protocol}")
    assert len(first) == 7
    assert sorted(first + rest, key=int) == written


# The Java consumer --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(KINDS))
def test_members_share_leave_commit_with_metadata_and_resume(java: Java, kind: str) -> None:
    topic, group = new_topic(java, "share"), unique(kind)
    written = fill(java, topic, RECORDS)
    one = Member(java, group, KINDS[kind], topics=[topic])
    await_shared([one], partitions_of(topic))
    await_read([one], written)
    each = RECORDS // PARTITIONS
    assert one.commit(TEXT) == {it: [each, TEXT] for it in partitions_of(topic)}
    two = Member(java, group, KINDS[kind], topics=[topic])
    await_shared([one, two], partitions_of(topic))
    await_read([one, two], written + fill(java, topic, RECORDS, first=RECORDS))
    for member in (one, two):
        member.commit()
    two.close()
    await_shared([one], partitions_of(topic))
    assert one.commit() == {it: [2 * each, ""] for it in partitions_of(topic)}
    one.close()
    again = Member(java, group, KINDS[kind], topics=[topic])
    await_read([again], fill(java, topic, PARTITIONS, first=2 * RECORDS))
    again.close()


@pytest.mark.parametrize("kind", ["range", "consumer"])
def test_a_static_member_restarts_without_a_rebalance_for_the_other(java: Java, kind: str) -> None:
    """KIP-345; in KIP-848 a static member that closes says that it comes back."""
    topic, group = new_topic(java, "static"), unique(kind)
    one, two = (
        Member(java, group, KINDS[kind] | {"group.instance.id": name}, topics=[topic]) for name in ("one", "two")
    )
    await_shared([one, two], partitions_of(topic))
    eventually(lambda: state_of(java, group) == "Stable", "the group is stable")
    before, owned = one.look()["changes"], two.owned
    two.close()
    two = Member(java, group, KINDS[kind] | {"group.instance.id": "two"}, topics=[topic])
    eventually(lambda: two.owned == owned, f"the member has {owned} again", seconds=WAIT_S_MAX)
    await_read([one, two], fill(java, topic, RECORDS))
    assert one.look()["changes"] == before
    shown = rows(java.groups("--describe", "--group", group, "--members"))
    assert {it["GROUP-INSTANCE-ID"]: it["#PARTITIONS"] for it in shown} == {"one": "2", "two": "2"}
    close_static(java, group, {"one": one, "two": two})


def close_static(java: Java, group: str, members: dict[str, Member]) -> None:
    """A static member that closes stays in its group; the administrator removes it."""
    for name, member in members.items():
        member.close()
        settings = {"bootstrap.servers": java.bootstrap}
        assert java.call("remove", settings=settings, group=group, instance=name) == {}
    eventually(lambda: state_of(java, group) == "Empty", "the group is empty")


def test_of_two_members_with_one_instance_id_the_protocol_says_which_is_refused(java: Java) -> None:
    """In the classic protocol the newcomer fences the old one; in KIP-848 the newcomer is refused (UNRELEASED)."""
    topic = new_topic(java, "twins")
    for kind, loser, error in (("range", 0, "FencedInstanceId"), ("consumer", 1, "UnreleasedInstanceId")):
        with case(kind):
            group, settings = unique(kind), KINDS[kind] | {"group.instance.id": "twin"}
            twins = [Member(java, group, settings, topics=[topic])]
            await_shared(twins, partitions_of(topic))
            twins.append(Member(java, group, settings, topics=[topic]))
            await_refused(twins[loser], error)
            await_shared([twins[1 - loser]], partitions_of(topic))
            for twin in twins:
                java.call("close", member=twin.name)


@pytest.mark.parametrize("subscription", ["pattern", "re2"])
def test_a_regular_expression_finds_topics_that_come_later(java: Java, subscription: str) -> None:
    """The client matches a pattern itself; with KIP-848 the coordinator matches RE2 expressions (KIP-1082)."""
    prefix, group = unique("regex"), unique("regex")
    kind = "range" if subscription == "pattern" else "consumer"
    first = create_topic(java.bootstrap, f"{prefix}-a", PARTITIONS)
    member = Member(java, group, KINDS[kind], **{subscription: f"{prefix}-[ab]"})
    await_shared([member], partitions_of(first))
    create_topic(java.bootstrap, f"{prefix}-c", PARTITIONS)
    second = create_topic(java.bootstrap, f"{prefix}-b", PARTITIONS)
    await_shared([member], partitions_of(first) + partitions_of(second))
    member.close()


def test_a_bad_regular_expression_is_refused(java: Java) -> None:
    member = Member(java, unique("regex"), KINDS["consumer"], re2="(")
    await_refused(member, "InvalidRegularExpression")
    java.call("close", member=member.name)


def test_a_group_takes_members_of_the_new_protocol_while_it_runs(java: Java) -> None:
    """KIP-848's upgrade and downgrade: members of both protocols share the partitions in between."""
    topic, group = new_topic(java, "upgrade"), unique("upgrade")
    old = Member(java, group, KINDS["range"], topics=[topic])
    await_shared([old], partitions_of(topic))
    new = Member(java, group, KINDS["consumer"], topics=[topic])
    await_shared([old, new], partitions_of(topic))
    assert listed(java, group, "TYPE", "--type") == "Consumer"
    new.close()
    await_shared([old], partitions_of(topic))
    assert listed(java, group, "TYPE", "--type") == "Classic"
    await_read([old], fill(java, topic, RECORDS))
    old.close()


# kafka-consumer-groups, kafka-groups --------------------------------------------------------------------------------


def rows(shown: str) -> list[dict[str, str]]:
    """The rows of a table that a tool has printed, by the names of their columns."""
    named = shown.replace("COORDINATOR (ID)", "COORDINATOR ID")
    head, *lines = [line.split() for line in named.splitlines() if line.strip()]
    return [dict(zip(head, line, strict=True)) for line in lines]


def state_of(java: Java, group: str) -> str:
    (row,) = rows(java.groups("--describe", "--group", group, "--state"))
    return row["STATE"]


def listed(java: Java, group: str, column: str, *arguments: str) -> str:
    """What `--list` says of a group in a column; nothing if the group is not listed."""
    return "".join(it[column] for it in rows(java.groups("--list", *arguments)) if it["GROUP"] == group)


def offsets_of(java: Java, group: str) -> list[tuple[str, str, str]]:
    """Partition, committed offset and lag."""
    found = rows(java.groups("--describe", "--group", group))
    return sorted((it["PARTITION"], it["CURRENT-OFFSET"], it["LAG"]) for it in found)


def with_half_committed(java: Java, kind: str) -> tuple[str, str, Member]:
    """A topic, a group, and a member that has read everything and committed the first half."""
    topic, group = new_topic(java, "tools"), unique(kind)
    member = Member(java, group, KINDS[kind], topics=[topic])
    await_read([member], fill(java, topic, RECORDS))
    member.commit()
    await_read([member], [str(it) for it in range(RECORDS)] + fill(java, topic, RECORDS, first=RECORDS))
    return topic, group, member


@pytest.mark.parametrize("kind", ["range", "consumer"])
def test_a_group_with_a_member_is_listed_described_and_protected(java: Java, kind: str) -> None:
    topic, group, member = with_half_committed(java, kind)
    type_ = "Consumer" if kind == "consumer" else "Classic"
    assert group in java.groups("--list").split()
    assert listed(java, group, "STATE", "--state") == "Stable"
    assert listed(java, group, "STATE", "--state", "empty") == ""
    assert listed(java, group, "TYPE", "--type", type_) == type_
    assert re.search(rf"{group} +{type_} +consumer\b", java.tool(f"{TOOLS}.GroupsCommand", "--list"))

    assert offsets_of(java, group) == [(str(it), "5", "5") for it in range(PARTITIONS)]
    (shown,) = rows(java.groups("--describe", "--group", group, "--members", "--verbose"))
    assert (shown["CONSUMER-ID"], shown["CLIENT-ID"]) == (member.look()["id"], member.name)
    assert shown["CURRENT-ASSIGNMENT"] == f"{topic}:0,1,2,3"
    (shown,) = rows(java.groups("--describe", "--group", group, "--state", "--verbose"))
    assert (shown["GROUP-EPOCH"] == "-") == (kind == "range")
    assert shown["TARGET-ASSIGNMENT-EPOCH"] == shown["GROUP-EPOCH"]
    assert shown["ASSIGNMENT-STRATEGY"] == {"range": "range", "consumer": "uniform"}[kind]
    assert (shown["STATE"], shown["#MEMBERS"]) == ("Stable", "1")

    named = ("--group", group, "--topic", topic)
    java.groups("--delete", "--group", group, refused="GroupNotEmptyException")
    java.groups("--reset-offsets", *named, "--to-earliest", "--execute", refused="can only be reset if the group")
    java.groups("--delete-offsets", *named, refused="GroupSubscribedToTopicException")
    assert offsets_of(java, group) == [(str(it), "5", "5") for it in range(PARTITIONS)]
    member.close()


@pytest.mark.parametrize("kind", ["range", "consumer"])
def test_the_offsets_of_a_group_without_members_are_reset_and_deleted(java: Java, kind: str) -> None:
    topic, group, member = with_half_committed(java, kind)
    member.close()
    assert state_of(java, group) == "Empty"
    named = ("--group", group, "--topic", topic)
    for arguments, offset in (
        (("--to-earliest", "--dry-run"), 0),
        (("--shift-by", "-2", "--dry-run"), 3),
        (("--to-datetime", "2020-01-01T00:00:00.000", "--dry-run"), 0),
        (("--by-duration", "PT1H", "--dry-run"), 0),
        (("--to-latest", "--dry-run"), 10),
        (("--to-offset", "7", "--execute"), 7),
    ):
        with case(arguments[0]):
            plan = rows(java.groups("--reset-offsets", *named, *arguments))
            assert {it["PARTITION"]: it["NEW-OFFSET"] for it in plan} == dict.fromkeys("0123", str(offset))
    assert offsets_of(java, group) == [(str(it), "7", "3") for it in range(PARTITIONS)]
    again = Member(java, group, KINDS[kind], topics=[topic])
    # The partitions have the numbers in turn: offset 7 of the first one is 28.
    await_read([again], [str(it) for it in range(7 * PARTITIONS, 10 * PARTITIONS)])
    again.close()

    java.groups("--delete-offsets", "--group", group, "--topic", f"{topic}:0")
    assert [it for it, *_ in offsets_of(java, group)] == ["1", "2", "3"]
    java.groups("--delete", "--group", group)
    assert group not in java.groups("--list").split()
    java.groups("--delete", "--group", group, refused="GroupIdNotFoundException")
    java.groups("--describe", "--group", group, refused=f"Group {group} not found.")


# kafka-configs, kafka-dump-log --------------------------------------------------------------------------------------


def test_a_group_has_configurations_of_its_own(java: Java) -> None:
    """KIP-848: resource type 32."""
    topic, group = new_topic(java, "configured"), unique("configured")

    def configs(*arguments: str, refused: str = "") -> str:
        named = ("--entity-type", "groups", "--entity-name", group)
        return java.tool("kafka.admin.ConfigCommand", *arguments, *named, refused=refused)

    configs("--alter", "--add-config", "consumer.session.timeout.ms=1234,consumer.heartbeat.interval.ms=123")
    assert "consumer.session.timeout.ms=1234 " in configs("--describe")
    assert "consumer.assignment.interval.ms=0 " in configs("--describe", "--all")
    configs("--alter", "--add-config", "consumer.session.timeout.ms=1", refused="InvalidConfigurationException")
    configs("--alter", "--add-config", "no.such.key=1", refused="InvalidConfigurationException")
    member = Member(java, group, KINDS["consumer"], topics=[topic])
    await_shared([member], partitions_of(topic))
    configs("--alter", "--delete-config", "consumer.session.timeout.ms,consumer.heartbeat.interval.ms")
    assert "=" not in configs("--describe")
    member.close()


@pytest.mark.parametrize("kind", ["range", "consumer"])
def test_kafkas_dump_reads_our_topic_of_offsets(java: Java, kind: str) -> None:
    """Every type of record that a group has, as Kafka's decoder prints it, from every replica."""
    types = {"range": {"1", "2"}, "consumer": {"1", "3", "4", "5", "6", "7", "8", "16"}}[kind]
    topic, group = new_topic(java, "dump"), unique(kind)
    subscription = {"re2": topic} if kind == "consumer" else {"topics": [topic]}
    member = Member(java, group, KINDS[kind], **subscription)
    await_read([member], fill(java, topic, RECORDS))
    member.commit(TEXT)
    member.close()
    java.groups("--delete", "--group", group)
    for number, data in java.data.items():
        with case(f"node {number}"):
            found = dumped(java, data, group)
            assert found.keys() == types
            assert [it for it, values in found.items() if values[-1] is not None] == [], "records without tombstones"
            if kind == "consumer":
                # Without a null here, Kafka takes a member for one of the classic protocol.
                assert (found["5"][0] or {})["classicMemberMetadata"] is None
            offsets = [it for it in found["1"] if it is not None]
            assert {(it["offset"], it["metadata"]) for it in offsets} == {(RECORDS // PARTITIONS, TEXT)}


def dumped(java: Java, data: Path, group: str) -> dict[str, list[dict[str, Any] | None]]:
    """The values of a group's records by the type of their keys, in the order of the log. A tombstone is None."""
    files = [path for path in data.glob("__consumer_offsets-*/*.log") if group.encode() in path.read_bytes()]
    words = ["--offsets-decoder", "--files", ",".join(map(str, files))]
    ended = java.call("tool", name=f"{TOOLS}.DumpLogSegments", arguments=words)
    assert (ended["code"], ended["err"]) == (0, "")
    found: dict[str, list[dict[str, Any] | None]] = {}
    for key, payload in re.findall(r" key: (\{.*\}) payload: (.*)", ended["out"]):
        if group in key:
            value = None if payload == "<DELETE>" else json.loads(payload)["data"]
            found.setdefault(json.loads(key)["type"], []).append(value)
    return found
