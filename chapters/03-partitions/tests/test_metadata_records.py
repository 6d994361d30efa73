"""Metadata records as bytes: worked examples, round trips, and invalid bytes."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metadata_model import case

from minibroker.controller.records import BrokerRegistrationChangeRecord, NoOpRecord, UnregisterBrokerRecord
from minibroker.metadata import records
from minibroker.metadata.errors import CorruptMetadata, UnknownRecord
from minibroker.replication.records import PartitionChangeRecord

ID = bytes(range(16))
ON_ONE: dict[str, Any] = {"topic_id": ID, "partition_id": 0, "replicas": [1], "isr": [1], "leader": 1}
ON_ONE |= {"leader_epoch": 0, "partition_epoch": 0}

# Worked out from Kafka's definitions. A string and an array begin with their length + 1; each struct ends with the
# count of its tagged fields.
BY_HAND: list[tuple[records.MetadataRecord, str]] = [
    (records.TopicRecord(name="orders", topic_id=ID), "01 02 00" + "07 6f7264657273" + ID.hex() + "00"),
    (records.RemoveTopicRecord(topic_id=ID), "01 09 00" + ID.hex() + "00"),
    (
        records.PartitionRecord(
            partition_id=2, topic_id=ID, replicas=[1, 2], isr=[1], leader=1, leader_epoch=3, partition_epoch=4
        ),
        "01 03 00"
        + "00000002"
        + ID.hex()
        + "03 00000001 00000002"
        + "02 00000001"
        + "01 01"
        + "00000001 00000003 00000004"
        + "00",
    ),
    (
        records.PartitionRecord(**ON_ONE, leader_recovery_state=1),
        "01 03 00" + "00000000" + ID.hex() + "02 00000001 02 00000001 01 01 00000001 00000000 00000000" + "01 00 01 01",
    ),
    # Every field except the first two is tagged: tag, size, value. An unchanged field takes no byte.
    (PartitionChangeRecord(partition_id=2, topic_id=ID), "01 05 00" + "00000002" + ID.hex() + "00"),
    (
        PartitionChangeRecord(partition_id=2, topic_id=ID, isr=[1, 3], leader=-1),
        "01 05 00" + "00000002" + ID.hex() + "02" + "00 09 03 00000001 00000003" + "01 04 ffffffff",
    ),
    (
        PartitionChangeRecord(
            partition_id=2,
            topic_id=ID,
            isr=[],
            replicas=[1],
            removing_replicas=[2],
            adding_replicas=[],
            leader_recovery_state=1,
        ),
        "01 05 00"
        + "00000002"
        + ID.hex()
        + "05"
        + "00 01 01"
        + "02 05 02 00000001"
        + "03 05 02 00000002"
        + "04 01 01"
        + "05 01 01",
    ),
    (
        records.ConfigRecord(resource_type=2, resource_name="orders", name="a", value="5"),
        "01 04 00" + "02 07 6f7264657273 02 61 02 35 00",
    ),
    (records.ConfigRecord(resource_type=4, resource_name="", name="a", value=None), "01 04 00" + "04 01 02 61 00 00"),
    (
        records.RegisterBrokerRecord(
            broker_id=1,
            incarnation_id=ID,
            broker_epoch=7,
            end_points=[records.BrokerEndpoint(name="P", host="h", port=9092, security_protocol=0)],
            fenced=False,
        ),
        "01 00 01" + "00000001" + ID.hex() + "0000000000000007" + "02 02 50 02 68 2384 0000 00" + "01 00 00 00" + "00",
    ),
    (
        records.ProducerIdsRecord(broker_id=1, broker_epoch=7, next_producer_id=1000),
        "01 0f 00" + "00000001 0000000000000007 00000000000003e8 00",
    ),
    (
        records.FeatureLevelRecord(name="metadata.version", feature_level=7),
        "01 0c 00" + "11" + b"metadata.version".hex() + "0007 00",
    ),
    (
        records.ClientQuotaRecord(
            entity=[
                records.QuotaEntityData(entity_type="user", entity_name="ada"),
                records.QuotaEntityData(entity_type="client-id", entity_name=None),
            ],
            key="rate",
            value=1000.0,
            remove=False,
        ),
        "01 0e 00"
        + ("03" + "05 75736572 04 616461 00" + "0a 636c69656e742d6964 00 00")
        + "05 72617465 408f400000000000 00 00",
    ),
    (UnregisterBrokerRecord(broker_id=3, broker_epoch=7), "01 01 00" + "00000003 0000000000000007 00"),
    (
        BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=7, fenced=-1, in_controlled_shutdown=1),
        "01 11 01" + "00000003 0000000000000007" + "02" + "00 01 ff" + "01 01 01",
    ),
    (NoOpRecord(), "01 14 00 00"),
]


def test_records_have_the_bytes_of_kafkas_definitions() -> None:
    for record, text in BY_HAND:
        with case(record, text):
            assert records.encode_record(record) == bytes.fromhex(text)
            assert records.decode_record(bytes.fromhex(text)) == record


def test_every_kind_of_record_has_an_example() -> None:
    assert {type(record) for record, _text in BY_HAND} == set(records.RECORDS.values())


def test_newer_versions_of_a_record_can_be_decoded() -> None:
    partition = records.PartitionRecord(**ON_ONE, directories=[ID], eligible_leader_replicas=[2])
    assert records.decode_record(bytes([1, 3, 2]) + partition.encode(2)) == partition
    # Tags are in order, so the directories, tag 8, come after the eligible leaders, tags 6 and 7.
    change = PartitionChangeRecord(
        partition_id=0, topic_id=ID, leader=1, eligible_leader_replicas=[2], last_known_elr=[], directories=[ID]
    )
    tagged = "04" + "01 04 00000001" + "06 05 02 00000002" + "07 01 01" + "08 11 02" + ID.hex()
    assert records.decode_record(bytes.fromhex("01 05 02" + "00000000" + ID.hex() + tagged)) == change


@given(
    st.text(max_size=40),
    st.binary(min_size=16, max_size=16),
    st.lists(st.integers(0, 2**31 - 1), max_size=5),
    st.integers(-2, 2**31 - 1),
)
def test_any_record_is_decoded_as_it_was_encoded(name: str, topic_id: bytes, replicas: list[int], leader: int) -> None:
    for record in (
        PartitionChangeRecord(topic_id=topic_id, isr=replicas or None, leader=leader, adding_replicas=replicas),
        records.TopicRecord(name=name, topic_id=topic_id),
        records.ConfigRecord(resource_type=2, resource_name=name, name=name, value=name),
        records.PartitionRecord(topic_id=topic_id, replicas=replicas, isr=replicas[:1]),
    ):
        assert records.decode_record(records.encode_record(record)) == record


def test_an_unknown_frame_version_kind_or_record_version_is_named() -> None:
    for frame in ["02 02 00", "01 63 00 00", "01 02 01 00", "01 03 03 00", "01 05 03 00"]:
        with case(frame), pytest.raises(UnknownRecord, match=r"the frame has version 2|newer program"):
            records.decode_record(bytes.fromhex(frame))


def test_a_record_that_is_cut_off_or_too_long_is_corrupt() -> None:
    for record in [record for record, _text in BY_HAND]:
        with case(record):
            assert isinstance(record, records.MetadataRecord)
            data = records.encode_record(record)
            for end in range(len(data)):
                with pytest.raises(CorruptMetadata, match="not a metadata record"):
                    records.decode_record(data[:end])
            with pytest.raises(CorruptMetadata):
                records.decode_record(data + b"\0")


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused_as_a_record(data: bytes) -> None:
    with contextlib.suppress(CorruptMetadata, UnknownRecord):
        records.decode_record(b"\1" + data)
