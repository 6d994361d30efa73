"""The records of `__consumer_offsets`: Kafka's bytes, old versions, damage, and the short way for offsets."""

import pytest
from cases import case
from hypothesis import example, given
from hypothesis import strategies as st
from wire_messages import sample, structs

from minibroker.groups.records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CorruptRecord,
    CurrentTopicPartitions,
    GroupKey,
    GroupMetadataKey,
    GroupMetadataValue,
    GroupRecord,
    GroupValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    TargetTopicPartitions,
    decode,
    decode_by_tables,
    encode,
    encode_key,
    encode_value,
)

TYPES: dict[int, tuple[type[GroupKey], type[GroupValue]]] = {
    1: (OffsetCommitKey, OffsetCommitValue),
    2: (GroupMetadataKey, GroupMetadataValue),
    3: (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    4: (ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
    5: (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    6: (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    7: (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    8: (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    16: (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
}
WRITTEN = {1: 4, 2: 3}
"""The versions of values that Kafka writes; the others are 0."""

TOPIC_ID = bytes(range(16))
ID = TOPIC_ID.hex(" ")

# A record, the bytes of its key and the bytes of its value. The bytes were written down from Kafka's definitions.
GOLDEN: list[tuple[GroupRecord, list[str], list[str]]] = [
    (
        GroupRecord(
            OffsetCommitKey(group_id="g", topic="to", partition=7),
            OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=9),
        ),
        ["0001", "0001 67", "0002 746f", "00000007"],
        ["0004", "0000000000000005", "00000002", "02 6d", "0000000000000009", "00"],
    ),
    (
        GroupRecord(
            OffsetCommitKey(group_id="", topic="", partition=-1),
            OffsetCommitValue(offset=-1, leader_epoch=-1, metadata="", commit_timestamp=0, topic_id=TOPIC_ID),
        ),
        ["0001", "0000", "0000", "ffffffff"],
        ["0004", "ffffffffffffffff", "ffffffff", "01", "0000000000000000", "01 00 10", ID],
    ),
    (
        # A retention time was sent: version 1, without the leader epoch.
        GroupRecord(
            OffsetCommitKey(group_id="g", topic="t", partition=0),
            OffsetCommitValue(offset=5, metadata="m", commit_timestamp=9, expire_timestamp=16),
        ),
        ["0001", "0001 67", "0001 74", "00000000"],
        ["0001", "0000000000000005", "0001 6d", "0000000000000009", "0000000000000010"],
    ),
    (
        GroupRecord(
            GroupMetadataKey(group_id="g"),
            GroupMetadataValue(
                protocol_type="consumer",
                generation=3,
                protocol="range",
                leader="a",
                current_state_timestamp=4,
                members=[
                    MemberMetadata(
                        member_id="a",
                        group_instance_id=None,
                        client_id="c",
                        client_host="/h",
                        rebalance_timeout=6,
                        session_timeout=7,
                        subscription=b"\x01",
                        assignment=b"",
                    )
                ],
            ),
        ),
        ["0002", "0001 67"],
        [
            "0003  0008 636f6e73756d6572  00000003  0005 72616e6765  0001 61  0000000000000004  00000001",
            "0001 61  ffff  0001 63  0002 2f68  00000006  00000007  00000001 01  00000000",
        ],
    ),
    (
        GroupRecord(
            GroupMetadataKey(group_id="g"),
            GroupMetadataValue(protocol_type="", generation=0, protocol=None, leader=None, members=[]),
        ),
        ["0002", "0001 67"],
        ["0003", "0000", "00000000", "ffff", "ffff", "ffffffffffffffff", "00000000"],
    ),
    (
        GroupRecord(ConsumerGroupMetadataKey(group_id="g"), ConsumerGroupMetadataValue(epoch=2, metadata_hash=255)),
        ["0003", "0001 67"],
        ["0000", "00000002", "01 00 08 00000000000000ff"],
    ),
    (
        # A member of the new protocol says so with null. Without that, Kafka takes it for one of the classic protocol.
        GroupRecord(
            ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"),
            ConsumerGroupMemberMetadataValue(
                instance_id="i",
                client_id="c",
                client_host="/h",
                subscribed_topic_names=["a", "b"],
                subscribed_topic_regex="x",
                rebalance_timeout_ms=5,
                server_assignor="range",
                classic_member_metadata=None,
            ),
        ),
        ["0005", "0001 67", "0001 6d"],
        [
            "0000  02 69  00  02 63  03 2f68  03 02 61 02 62  02 78  00000005  06 72616e6765",
            "01 00 01 00",
        ],
    ),
    (
        # A member of the classic protocol. A nullable struct begins with 1.
        GroupRecord(
            ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"),
            ConsumerGroupMemberMetadataValue(
                client_id="c",
                client_host="/h",
                subscribed_topic_names=[],
                rebalance_timeout_ms=5,
                classic_member_metadata=ClassicMemberMetadata(
                    session_timeout_ms=6, supported_protocols=[ClassicProtocol(name="r", metadata=b"\x07")]
                ),
            ),
        ),
        ["0005", "0001 67", "0001 6d"],
        [
            "0000  00  00  02 63  03 2f68  01  01  00000005  00",
            "01 00 0c  01 00000006  02  02 72  02 07  00  00",
        ],
    ),
    (
        GroupRecord(
            ConsumerGroupTargetAssignmentMetadataKey(group_id="g"),
            ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=2, assignment_timestamp=255),
        ),
        ["0006", "0001 67"],
        ["0000", "00000002", "01 00 08 00000000000000ff"],
    ),
    (
        GroupRecord(
            ConsumerGroupTargetAssignmentMemberKey(group_id="g", member_id="m"),
            ConsumerGroupTargetAssignmentMemberValue(
                topic_partitions=[TargetTopicPartitions(topic_id=TOPIC_ID, partitions=[0, 1])]
            ),
        ),
        ["0007", "0001 67", "0001 6d"],
        ["0000", "02", ID, "03 00000000 00000001", "00", "00"],
    ),
    (
        GroupRecord(
            ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"),
            ConsumerGroupCurrentMemberAssignmentValue(
                member_epoch=3,
                previous_member_epoch=2,
                state=1,
                assigned_partitions=[CurrentTopicPartitions(topic_id=TOPIC_ID, partitions=[4], assignment_epochs=[3])],
                partitions_pending_revocation=[CurrentTopicPartitions(topic_id=TOPIC_ID, partitions=[5])],
            ),
        ),
        ["0008", "0001 67", "0001 6d"],
        [
            "0000  00000003  00000002  01",
            "02",
            ID,
            "02 00000004  01 00 05 02 00000003",
            "02",
            ID,
            "02 00000005  00  00",
        ],
    ),
    (
        GroupRecord(
            ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="a.*"),
            ConsumerGroupRegularExpressionValue(topics=["ab"], version=6, timestamp=7),
        ),
        ["0010", "0001 67", "0003 612e2a"],
        ["0000", "02 03 6162", "0000000000000006", "0000000000000007", "00"],
    ),
]


def hex_bytes(parts: list[str]) -> bytes:
    return bytes.fromhex(" ".join(parts))


@st.composite
def records(draw: st.DrawFn) -> GroupRecord:
    """A record of any type, with the fields of the version that is written."""
    number = draw(st.sampled_from(sorted(TYPES)))
    key_class, value_class = TYPES[number]
    key = draw(structs(key_class, number))
    value = draw(st.none() | structs(value_class, WRITTEN.get(number, 0)))
    assert isinstance(key, GroupKey)
    assert value is None or isinstance(value, GroupValue)
    return GroupRecord(key, value)


def test_records_have_kafkas_bytes() -> None:
    for record, key, value in GOLDEN:
        with case(record):
            assert encode_key(record.key).hex() == hex_bytes(key).hex()
            assert record.value is not None
            assert encode_value(record.value).hex() == hex_bytes(value).hex()
            assert decode(hex_bytes(key), hex_bytes(value)) == record


def test_every_type_that_is_written_has_golden_bytes() -> None:
    assert {type(record.key) for record, _key, _value in GOLDEN} == {
        key for key, _value in TYPES.values() if key is not ConsumerGroupPartitionMetadataKey
    }


@given(records())
def test_a_record_is_decoded_as_it_was_encoded(record: GroupRecord) -> None:
    key, value = encode(record)
    assert decode(key, value) == record
    assert (value is None) == (record.value is None)


def test_values_of_every_old_version_are_decoded() -> None:
    for number, (key_class, value_class) in TYPES.items():
        versions = value_class.schema.versions
        assert versions is not None
        for version in range(versions.first, versions.last + 1):
            with case(value_class.__name__, version):
                key, value = sample(key_class, number), sample(value_class, version)
                assert isinstance(key, GroupKey)
                found = decode(encode_key(key), version.to_bytes(2, "big") + value.encode(version))
                assert found == GroupRecord(key, value)  # type: ignore[arg-type]


def test_offsets_of_type_0_are_read() -> None:
    record, key, value = GOLDEN[0]
    assert decode(b"\x00\x00" + hex_bytes(key)[2:], hex_bytes(value)) == record


def test_a_record_of_an_unknown_type_is_skipped() -> None:
    for number in (-1, 9, 10, 15, 17, 32767):
        for value in (None, b"", b"anything"):
            with case(number, value):
                assert decode(number.to_bytes(2, "big", signed=True) + b"anything", value) is None


def test_damaged_bytes_are_corrupt_wherever_they_end() -> None:
    for record, *_bytes in GOLDEN:
        key, value = encode(record)
        assert value is not None
        for size in range(len(value)):
            with case(record, size), pytest.raises(CorruptRecord, match="record of __consumer_offsets with the key"):
                decode(key, value[:size])
        # A key of two bytes or more has its type, so it is not skipped.
        for size in range(len(key)):
            with case(record, size), pytest.raises(CorruptRecord):
                decode(key[:size], value)
        with case(record), pytest.raises(CorruptRecord):
            decode(key, value + b"\x00")
        with case(record), pytest.raises(CorruptRecord):
            decode(key + b"\x00", value)


def test_a_version_that_is_not_known_is_corrupt() -> None:
    for number, (key_class, value_class) in TYPES.items():
        versions = value_class.schema.versions
        assert versions is not None
        for version in (-1, versions.last + 1):
            key = number.to_bytes(2, "big") + sample(key_class, number).encode(number)
            with case(value_class.__name__, version), pytest.raises(CorruptRecord, match=f"not {version}$"):
                decode(key, version.to_bytes(2, "big", signed=True) + bytes(64))


@given(st.sampled_from([*TYPES, 0, 9]), st.binary(max_size=40), st.none() | st.binary(max_size=80))
def test_any_bytes_are_a_record_or_unknown_or_corrupt(number: int, key: bytes, value: bytes | None) -> None:
    try:
        found = decode(number.to_bytes(2, "big") + key, value)
    except CorruptRecord:
        return
    assert found is None or isinstance(found, GroupRecord)


# Committed offsets, the short way


def outcome(how: object, key: bytes, value: bytes) -> object:
    """What a decoder returns, or the message of its error."""
    try:
        return how(key, value)  # type: ignore[operator]
    except CorruptRecord as error:
        return str(error)


def assert_same(key: bytes, value: bytes) -> None:
    assert outcome(decode, key, value) == outcome(decode_by_tables, key, value)


LONG = OffsetCommitValue(offset=1, metadata="x" * 126, commit_timestamp=2)
TOO_LONG = OffsetCommitValue(offset=1, metadata="x" * 127, commit_timestamp=2, topic_id=TOPIC_ID)


@given(structs(OffsetCommitKey, 1), structs(OffsetCommitValue, 4))
@example(OffsetCommitKey(group_id="g", topic="t", partition=1), LONG)
@example(OffsetCommitKey(group_id="g" * 300, topic="é" * 300, partition=-1), TOO_LONG)
def test_the_short_way_treats_an_offset_like_the_tables(key: OffsetCommitKey, value: OffsetCommitValue) -> None:
    assert encode(GroupRecord(key, value)) == (encode_key(key), encode_value(value))
    assert_same(encode_key(key), encode_value(value))


@given(
    st.sampled_from(["", "m", "é", "x" * 126, "x" * 127]),
    st.sampled_from([bytes(16), TOPIC_ID]),
    st.integers(0, 200),
    st.integers(0, 255),
    st.integers(0, 3),
)
def test_the_short_way_refuses_damage_like_the_tables(
    metadata: str, topic_id: bytes, position: int, byte: int, kind: int
) -> None:
    key = bytearray(encode_key(OffsetCommitKey(group_id="grüp", topic="t", partition=1)))
    value = bytearray(
        encode_value(OffsetCommitValue(offset=1, metadata=metadata, commit_timestamp=2, topic_id=topic_id))
    )
    if kind == 0:
        value[position % len(value)] = byte
    elif kind == 1:
        key[2 + position % (len(key) - 2)] = byte
    elif kind == 2:
        del value[position % len(value) :]
    else:
        value += bytes([byte])
    assert_same(bytes(key), bytes(value))


def test_an_unknown_tagged_field_of_an_offset_is_skipped() -> None:
    record, key, value = GOLDEN[0]
    assert decode(hex_bytes(key), hex_bytes([*value[:-1], "01 05 02 abcd"])) == record
    with_id = hex_bytes([*value[:-1], "02 00 10", ID, "05 00"])
    found = decode(hex_bytes(key), with_id)
    assert found is not None
    assert isinstance(found.value, OffsetCommitValue)
    assert found.value.topic_id == TOPIC_ID


def test_the_offsets_of_a_group_share_its_name() -> None:
    """A million committed offsets would otherwise hold a million copies of a few names."""
    first, second = (
        decode(*encode(GroupRecord(OffsetCommitKey(group_id="readers", topic="orders", partition=it), LONG)))
        for it in (1, 2)
    )
    assert first is not None
    assert second is not None
    assert isinstance(first.key, OffsetCommitKey)
    assert isinstance(second.key, OffsetCommitKey)
    assert first.key.group_id is second.key.group_id
    assert first.key.topic is second.key.topic
