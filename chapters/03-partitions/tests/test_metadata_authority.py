"""One voter on one log: committed records are on the disk, and survive every kind of stop."""

from random import Random

import pytest
from metadata_model import (
    LOG_FILE,
    NODE,
    NOW_MS,
    alter,
    case,
    create,
    open_log,
    open_voter,
    registered_voter,
    setting,
    topic_id,
)

from minibroker.controller.records import NoOpRecord
from minibroker.log.batch import BatchBuilder, batches
from minibroker.log.memory import MemoryFiles
from minibroker.metadata.authority import METADATA_LOG_CONFIG, Proposal, Voter, read_records
from minibroker.metadata.config_keys import ConfigResource
from minibroker.metadata.errors import CorruptMetadata, UnknownRecord
from minibroker.metadata.image import Image
from minibroker.metadata.records import FeatureLevelRecord, encode_record
from minibroker.metadata.topic_commands import CreateTopics, DeleteTopics, NewTopic, TopicReference
from minibroker.segments.config import LogConfig
from minibroker.wire.codes import ErrorCode


def append(files: MemoryFiles, *values: bytes | None, is_control: bool = False) -> None:
    """Append log records without the voter."""
    log = open_log(files)
    batch = BatchBuilder(is_control=is_control)
    for value in values:
        batch.append(timestamp=NOW_MS, key=None, value=value)
    log.append(batch.build(), leader_epoch=1)
    log.flush()


def test_a_new_log_begins_with_the_version_of_its_records() -> None:
    files = MemoryFiles()
    voter = open_voter(files)
    assert voter.image.features == {"metadata.version": 7}
    assert voter.image.cluster_id == "a-cluster"
    first = next(read_records(open_log(files), 0))
    assert first == (0, FeatureLevelRecord(name="metadata.version", feature_level=7))


def test_one_command_is_one_batch_with_null_keys() -> None:
    files = MemoryFiles()
    voter = registered_voter(files)
    create(voter, "orders", 1, partitions=3, configs={"segment.ms": "5"})
    log = open_log(files)
    found = list(batches(log.read(0, bytes_max=10**6).read()))
    assert [batch.header.record_count for batch in found] == [1, 1, 5]
    assert {record.key for batch in found for record in batch.records()} == {None}
    assert {batch.header.max_timestamp for batch in found} == {NOW_MS}


def test_a_proposal_is_done_at_once_and_seen_in_the_image() -> None:
    voter = registered_voter(MemoryFiles())
    proposal = voter.propose(CreateTopics([NewTopic("orders", topic_id(1))], NODE))
    assert proposal.is_done
    assert proposal.result[0].code == ErrorCode.NONE
    assert "orders" in voter.image.topics


def test_a_proposal_gets_its_result_once() -> None:
    proposal: Proposal[int] = Proposal()
    assert not proposal.is_done
    with pytest.raises(AssertionError):
        assert proposal.result == 0
    proposal.complete(5)
    assert proposal.result == 5
    with pytest.raises(AssertionError):
        proposal.complete(6)


def test_a_refused_or_validating_command_writes_nothing() -> None:
    voter = registered_voter(MemoryFiles())
    before = voter.image
    create(voter, "bad/name", 1)
    voter.propose(CreateTopics([NewTopic("orders", topic_id(1))], NODE, validate_only=True))
    assert voter.image is before


def test_listeners_see_each_change_once_in_order() -> None:
    voter = registered_voter(MemoryFiles())
    seen: list[tuple[int, int]] = []
    voter.subscribe(lambda old, new: seen.append((len(old.topics), len(new.topics))))
    create(voter, "a", 1)
    create(voter, "a", 2)
    create(voter, "b", 3)
    assert seen == [(0, 1), (1, 2)]


def test_a_listener_may_not_propose() -> None:
    voter = registered_voter(MemoryFiles())

    def listener(_old: Image, _new: Image) -> None:
        create(voter, "b", 2)

    voter.subscribe(listener)
    with pytest.raises(AssertionError, match="a listener must not propose"):
        create(voter, "a", 1)


# Restarts


def test_after_a_restart_the_image_is_the_same() -> None:
    files = MemoryFiles()
    voter = registered_voter(files)
    for number in range(1, 40):
        create(voter, f"topic_{number}", number, partitions=number % 3 + 1)
    voter.propose(alter(ConfigResource.TOPIC, "topic_5", setting("segment.ms", "5")))
    voter.propose(DeleteTopics([TopicReference("topic_7")]))
    assert open_voter(files).image == voter.image


def test_a_log_of_many_segments_is_read_to_its_end() -> None:
    files = MemoryFiles()
    config = LogConfig(segment_bytes=300, retention_ms=-1)
    voter = open_voter(files, config)
    for count in range(5, 35):
        voter.propose(alter(ConfigResource.BROKER, "", setting("message.max.bytes", str(count))))
    assert len([name for name in files.list("data/__cluster_metadata-0") if name.endswith(".log")]) > 3
    assert open_voter(files, config).image == voter.image


def test_a_power_failure_loses_no_completed_proposal() -> None:
    for seed in range(30):
        with case(seed):
            chance = Random(seed)
            files = MemoryFiles()
            voter = registered_voter(files)
            number = 0
            for _ in range(6):
                for _ in range(chance.randrange(5)):
                    number += 1
                    assert create(voter, f"t{number}", number, partitions=chance.randint(1, 4)).code == ErrorCode.NONE
                promised = voter.image
                files.crash(chance)
                voter = open_voter(files)
                assert voter.image == promised


def test_a_torn_tail_is_truncated_and_the_log_continues() -> None:
    files = MemoryFiles()
    voter = registered_voter(files)
    create(voter, "a", 1)
    promised = voter.image
    file = files.open(LOG_FILE)
    file.pwrite(b"half a batch, and no more", file.size())
    voter = open_voter(files)
    assert voter.image == promised
    assert create(voter, "b", 2).code == ErrorCode.NONE
    assert open_voter(files).image.topics.keys() == {"a", "b"}


# Damaged logs


def test_a_flipped_bit_is_found_and_the_offset_is_named() -> None:
    files = MemoryFiles()
    voter = registered_voter(files)
    create(voter, "a", 1)
    create(voter, "b", 2)
    log = open_log(files)
    position = log.read(4, bytes_max=1).position
    file = files.open(LOG_FILE)
    file.pwrite(bytes([file.pread(1, position + 70)[0] ^ 1]), position + 70)
    with pytest.raises(CorruptMetadata, match=r"metadata log at offset 4: .*crc"):
        Voter(log, cluster_id="a-cluster", clock=lambda: NOW_MS)


def test_an_undecodable_record_prevents_the_start_and_its_offset_is_named() -> None:
    for value, error, message in [
        (b"\1\x63\0\0", UnknownRecord, "at offset 2: record kind 99 in version 0 is unknown"),
        (b"\7\2\0", UnknownRecord, "at offset 2: the frame has version 7"),
        (b"\1\2\0\5", CorruptMetadata, "at offset 2: 4 bytes are not a metadata record"),
        (b"", CorruptMetadata, "at offset 2: 0 bytes are not a metadata record"),
        (None, CorruptMetadata, "at offset 2: 0 bytes are not a metadata record"),
    ]:
        with case(value, error, message):
            files = MemoryFiles()
            open_voter(files)
            append(files, encode_record(NoOpRecord()), value)
            with pytest.raises(error, match=message):
                open_voter(files)


def test_control_batches_are_skipped() -> None:
    files = MemoryFiles()
    open_voter(files)
    append(files, b"no metadata record", is_control=True)
    append(files, encode_record(FeatureLevelRecord(name="x", feature_level=1)))
    assert open_voter(files).image.features == {"metadata.version": 7, "x": 1}


# Disk errors


def test_a_full_disk_is_reported_and_writing_works_again_later() -> None:
    files = MemoryFiles()
    voter = registered_voter(files)
    before = voter.image
    files.room_bytes = 20
    assert create(voter, "a", 1).code == ErrorCode.KAFKA_STORAGE_ERROR
    assert voter.image is before
    files.room_bytes = None
    assert create(voter, "a", 2).code == ErrorCode.NONE
    assert open_voter(files).image == voter.image


def test_after_a_failed_flush_every_command_fails_until_a_restart() -> None:
    files = MemoryFiles()
    voter = registered_voter(files)
    create(voter, "a", 1)
    promised = voter.image
    files.fsync_error = OSError(5, "input/output error")
    assert create(voter, "b", 2).code == ErrorCode.KAFKA_STORAGE_ERROR
    files.fsync_error = None
    refused = create(voter, "c", 3)
    assert refused.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "restart" in (refused.message or "")
    assert voter.image is promised
    files.crash()
    assert open_voter(files).image == promised


def test_the_metadata_log_is_never_deleted_by_age_or_size() -> None:
    assert METADATA_LOG_CONFIG.retention_ms == METADATA_LOG_CONFIG.retention_bytes == -1
