"""Directories follow the image: create, grow, delete, create again, configure; crashes in between; damaged files."""

import gc
import weakref
from collections.abc import Collection
from random import Random

import pytest
from partitions_broker import MemoryBroker, batch

from minibroker.log.memory import MemoryFiles
from minibroker.metadata.authority import Listeners
from minibroker.metadata.config_commands import AlterConfigs, ConfigChange, ResourceChange
from minibroker.metadata.config_keys import ConfigResource
from minibroker.metadata.topic_commands import CreatePartitions, MorePartitions
from minibroker.partitions.errors import Refused
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.uuids import uuid_text


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker()
    broker.create("orders", 2)
    return broker


def files(broker: MemoryBroker, directory: str) -> list[str]:
    return broker.files.list(f"data/{directory}")


def test_a_topic_is_a_directory_for_each_partition_in_kafkas_layout(broker: MemoryBroker) -> None:
    assert {"orders-0", "orders-1", "__cluster_metadata-0"} <= set(broker.files.list("data"))
    assert {"00000000000000000000.log", "partition.metadata"} <= set(files(broker, "orders-1"))
    topic_id = uuid_text(broker.authority.image.topics["orders"].topic_id)
    file = broker.files.open("data/orders-0/partition.metadata")
    assert file.pread(1000, 0).decode() == f"version: 0\ntopic_id: {topic_id}\n"


def test_records_are_there_after_a_restart(broker: MemoryBroker) -> None:
    broker.produce("orders", batch(b"a"), partition=1)
    broker.data.close()
    again = MemoryBroker(broker.files)
    assert again.end("orders", 1) == 1


def test_a_grown_topic_has_more_directories_and_keeps_its_records(broker: MemoryBroker) -> None:
    broker.produce("orders", batch(b"a"), partition=1)
    (grown,) = broker.authority.propose(CreatePartitions([MorePartitions("orders", 4)])).result
    assert grown.code == ErrorCode.NONE
    assert broker.end("orders", 3) == 0
    assert broker.end("orders", 1) == 1


def test_a_deleted_topic_is_gone_and_its_directories_with_it(broker: MemoryBroker) -> None:
    broker.delete("orders")
    assert not any(name.startswith("orders") for name in broker.files.list("data"))
    with pytest.raises(Refused) as refused:
        broker.store.partition("orders", 0)
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_that_is_created_again_is_empty(broker: MemoryBroker) -> None:
    broker.produce("orders", batch(b"a"))
    old_id = broker.authority.image.topics["orders"].topic_id
    broker.delete("orders")
    broker.create("orders", 2)
    assert broker.authority.image.topics["orders"].topic_id != old_id
    assert broker.end("orders") == 0


class CrashingBroker(MemoryBroker):
    """A broker whose store can stop following the image, as if it had crashed after the flush of the metadata."""

    def stop_following(self) -> None:
        self.authority._listeners = Listeners()


def crashed_during_deletion(partitions: int) -> CrashingBroker:
    """A broker that crashed after its topic was deleted in the metadata, but before its directories were."""
    first = CrashingBroker()
    first.create("orders", partitions)
    first.produce("orders", batch(b"of the old topic"))
    first.stop_following()
    first.delete("orders")
    return first


def test_after_a_crash_the_next_start_makes_the_directories_of_a_new_topic() -> None:
    first = CrashingBroker()
    first.stop_following()
    first.create("orders", 2)
    assert "orders-0" not in first.files.list("data")
    assert MemoryBroker(first.files).end("orders", 1) == 0


def test_after_a_crash_a_new_topic_never_gets_the_data_of_a_deleted_one() -> None:
    first = crashed_during_deletion(2)
    first.create("orders", 2)
    assert "orders-0" in first.files.list("data")
    assert MemoryBroker(first.files).end("orders") == 0


def test_a_directory_that_the_metadata_do_not_know_is_set_aside_and_kept(
    broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.files.mkdir("data/strange-0")
    broker.files.open("data/strange-0/00000000000000000000.log").close()
    broker.data.close()
    again = MemoryBroker(broker.files)
    (aside,) = [name for name in again.files.list("data") if name.startswith("strange")]
    assert aside.endswith("-stray")
    assert "strange-0: the metadata do not contain it" in caplog.text
    again.create("strange")
    assert aside in again.files.list("data")


def test_after_a_crash_the_next_start_finishes_a_deletion() -> None:
    first = crashed_during_deletion(2)
    assert "orders-1" in first.files.list("data")
    again = MemoryBroker(first.files)
    assert not any(name.startswith("orders") for name in again.files.list("data"))


def test_leftovers_are_cleared_one_by_one_and_the_metadata_are_read_once() -> None:
    """A node that was down while thousands of partitions were deleted must send heartbeats meanwhile."""
    first = crashed_during_deletion(3)
    asked: list[int] = []

    def removed_topics() -> Collection[bytes]:
        asked.append(1)
        return first.authority.removed_topics()

    store = first.make_store()
    store.begin(first.authority.image)
    first.authority.subscribe(store.follow)
    steps = store.clear_leftovers(removed_topics)
    before = first.files.list("data")
    assert next(steps) == TopicPartition("orders", 0)
    assert set(before) - set(first.files.list("data")) == {"orders-0"}
    # A topic that is created between two steps is not a leftover.
    first.create("orders", 2)
    assert [it.partition for it in steps] == [1, 2]
    assert sorted(name for name in first.files.list("data") if name.startswith("orders")) == ["orders-0", "orders-1"]
    assert sorted(it.name.partition for it in store) == [0, 1]
    # Without leftovers the metadata are not read.
    assert list(store.clear_leftovers(removed_topics)) == []
    assert asked == [1]


def test_growing_a_topic_does_not_touch_its_offline_partitions(broker: MemoryBroker) -> None:
    broker.produce("orders", batch(b"a"))
    broker.data.close()
    path = "data/orders-0/partition.metadata"
    again = MemoryBroker(broker.files)
    again.store._failed[again.store._partitions.popitem()[0]] = "as if its disk had failed at the start"
    before = {name: files(again, name) for name in ("orders-0", "orders-1")}
    again.authority.propose(CreatePartitions([MorePartitions("orders", 3)]))
    assert {name: files(again, name) for name in before} == before
    assert path.rpartition("/")[2] in files(again, "orders-2")


def test_a_topic_whose_directories_could_not_be_deleted_is_not_served(
    broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(5, "Input/output error")

    broker.produce("orders", batch(b"old"))
    rename, broker.files.rename = broker.files.rename, refuse  # type: ignore[method-assign]
    broker.delete("orders")
    assert broker.fetch("orders").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "orders-0 could not be deleted" in caplog.text
    broker.create("orders", 2)
    assert broker.fetch("orders").error_code == ErrorCode.KAFKA_STORAGE_ERROR  # rather than the old topic's data
    broker.files.rename = rename  # type: ignore[method-assign]
    assert MemoryBroker(broker.files).end("orders") == 0


def test_a_missing_directory_is_logged(broker: MemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker.produce("orders", batch(b"a"))
    broker.data.close()
    for name in files(broker, "orders-0"):
        broker.files.unlink(f"data/orders-0/{name}")
    broker.files.rmdir("data/orders-0")
    assert MemoryBroker(broker.files).end("orders") == 0
    assert "orders-0 starts empty: its directory with records up to 1 is missing" in caplog.text


def test_the_files_of_a_deleted_partition_are_closed_at_once(broker: MemoryBroker) -> None:
    broker.produce("orders", batch(b"a"))
    partition = weakref.ref(broker.store.partition("orders", 0))
    file = weakref.ref(broker.store.partition("orders", 0).log.segments[-1].file)
    gc.disable()
    try:
        broker.delete("orders")
        assert partition() is None
        assert file() is None
    finally:
        gc.enable()


def test_a_partition_whose_files_are_damaged_is_offline_and_the_others_are_not(broker: MemoryBroker) -> None:
    for partition in (0, 1):
        broker.produce("orders", batch(b"a" * 100), partition=partition)
    broker.store.partition("orders", 0).log.flush()
    broker.data.write("recovery-point-offset-checkpoint")
    file = broker.files.open("data/orders-0/00000000000000000000.log")
    file.pwrite(b"damaged", 80)
    again = MemoryBroker(broker.files)
    assert again.produce("orders", batch(b"b"), partition=1).error_code == ErrorCode.NONE
    answer = again.produce("orders", batch(b"b"), partition=0)
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "orders-0" in answer.error_message


def test_a_changed_configuration_is_applied_at_once(broker: MemoryBroker) -> None:
    change = ResourceChange(ConfigResource.TOPIC, "orders", [ConfigChange("max.message.bytes", "100")])
    broker.authority.propose(AlterConfigs([change], broker.config))
    assert broker.produce("orders", batch(b"x" * 100)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    undo = ResourceChange(ConfigResource.TOPIC, "orders", [])
    broker.authority.propose(AlterConfigs([undo], broker.config, replaces=True))
    assert broker.produce("orders", batch(b"x" * 100)).error_code == ErrorCode.NONE


def test_a_broker_wide_configuration_reaches_every_topic_that_does_not_set_its_own(broker: MemoryBroker) -> None:
    broker.create("own", max_message_bytes="1000")
    change = ResourceChange(ConfigResource.BROKER, "", [ConfigChange("message.max.bytes", "100")])
    broker.authority.propose(AlterConfigs([change], broker.config))
    assert broker.produce("orders", batch(b"x" * 100)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert broker.produce("own", batch(b"x" * 100)).error_code == ErrorCode.NONE


def test_a_power_cut_loses_no_topic_that_was_created() -> None:
    for seed in range(20):
        files = MemoryFiles()
        broker = MemoryBroker(files)
        broker.create("orders", 2)
        files.crash(Random(seed))
        again = MemoryBroker(files)
        assert again.produce("orders", batch(b"a"), partition=1).error_code == ErrorCode.NONE
