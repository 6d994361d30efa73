"""Directories follow the image: create, grow, delete, create again, configure; crashes in between; damaged files."""

import gc
import weakref
from collections.abc import Collection
from random import Random

import pytest
from partitions_house import House, batch

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
def house() -> House:
    house = House()
    house.create("orders", 2)
    return house


def files(house: House, directory: str) -> list[str]:
    return house.files.list(f"data/{directory}")


def test_a_topic_is_a_directory_for_each_partition_in_kafkas_layout(house: House) -> None:
    assert {"orders-0", "orders-1", "__cluster_metadata-0"} <= set(house.files.list("data"))
    assert {"00000000000000000000.log", "partition.metadata"} <= set(files(house, "orders-1"))
    topic_id = uuid_text(house.authority.image.topics["orders"].topic_id)
    file = house.files.open("data/orders-0/partition.metadata")
    assert file.pread(1000, 0).decode() == f"version: 0\ntopic_id: {topic_id}\n"


def test_what_was_produced_is_there_after_a_restart(house: House) -> None:
    house.produce("orders", batch(b"a"), partition=1)
    house.data.close()
    again = House(house.files)
    assert again.end("orders", 1) == 1


def test_a_grown_topic_has_more_directories_and_keeps_its_records(house: House) -> None:
    house.produce("orders", batch(b"a"), partition=1)
    (grown,) = house.authority.propose(CreatePartitions([MorePartitions("orders", 4)])).result
    assert grown.code == ErrorCode.NONE
    assert house.end("orders", 3) == 0
    assert house.end("orders", 1) == 1


def test_a_deleted_topic_is_gone_and_its_directories_with_it(house: House) -> None:
    house.delete("orders")
    assert not any(name.startswith("orders") for name in house.files.list("data"))
    with pytest.raises(Refused) as refused:
        house.store.partition("orders", 0)
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_that_is_created_again_begins_anew(house: House) -> None:
    house.produce("orders", batch(b"a"))
    old_id = house.authority.image.topics["orders"].topic_id
    house.delete("orders")
    house.create("orders", 2)
    assert house.authority.image.topics["orders"].topic_id != old_id
    assert house.end("orders") == 0


class TwoLives(House):
    """A house whose store does not hear of changes: as if the broker had died behind the metadata's flush."""

    def stop_following(self) -> None:
        self.authority._listeners = Listeners()


def deleted_unheard(partitions: int) -> TwoLives:
    """A house that died when its topic had been deleted, and none of the directories."""
    first = TwoLives()
    first.create("orders", partitions)
    first.produce("orders", batch(b"of the old topic"))
    first.stop_following()
    first.delete("orders")
    return first


def test_a_crash_after_a_topic_was_decided_leaves_its_directories_to_the_next_start() -> None:
    first = TwoLives()
    first.stop_following()
    first.create("orders", 2)
    assert "orders-0" not in first.files.list("data")
    assert House(first.files).end("orders", 1) == 0


def test_a_crash_between_delete_and_create_never_gives_a_topic_the_data_of_another() -> None:
    first = deleted_unheard(2)
    first.create("orders", 2)
    assert "orders-0" in first.files.list("data")
    assert House(first.files).end("orders") == 0


def test_a_directory_that_no_metadata_speaks_of_is_set_aside_and_kept(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.files.mkdir("data/strange-0")
    house.files.open("data/strange-0/00000000000000000000.log").close()
    house.data.close()
    again = House(house.files)
    (aside,) = [name for name in again.files.list("data") if name.startswith("strange")]
    assert aside.endswith("-stray")
    assert "strange-0: the metadata knows no such partition" in caplog.text
    again.create("strange")
    assert aside in again.files.list("data")


def test_a_deletion_that_a_crash_interrupted_is_finished_by_the_next_start() -> None:
    first = deleted_unheard(2)
    assert "orders-1" in first.files.list("data")
    again = House(first.files)
    assert not any(name.startswith("orders") for name in again.files.list("data"))


def test_leftovers_are_put_away_one_by_one_and_the_metadata_are_asked_once() -> None:
    """A node that was away while thousands of partitions were deleted must not be silent until all are gone."""
    first = deleted_unheard(3)
    asked: list[int] = []

    def removed_topics() -> Collection[bytes]:
        asked.append(1)
        return first.authority.removed_topics()

    store = first.make_store()
    store.begin(first.authority.image)
    first.authority.subscribe(store.follow)
    steps = store.put_away(removed_topics)
    before = first.files.list("data")
    assert next(steps) == TopicPartition("orders", 0)
    assert set(before) - set(first.files.list("data")) == {"orders-0"}
    # One that is created between two steps is nobody's leftover.
    first.create("orders", 2)
    assert [it.partition for it in steps] == [1, 2]
    assert sorted(name for name in first.files.list("data") if name.startswith("orders")) == ["orders-0", "orders-1"]
    assert sorted(it.name.partition for it in store) == [0, 1]
    # Who has none need not ask again.
    assert list(store.put_away(removed_topics)) == []
    assert asked == [1]


def test_growing_a_topic_does_not_touch_its_offline_partitions(house: House) -> None:
    house.produce("orders", batch(b"a"))
    house.data.close()
    path = "data/orders-0/partition.metadata"
    again = House(house.files)
    again.store._failed[again.store._partitions.popitem()[0]] = "as if its disk had failed at the start"
    before = {name: files(again, name) for name in ("orders-0", "orders-1")}
    again.authority.propose(CreatePartitions([MorePartitions("orders", 3)]))
    assert {name: files(again, name) for name in before} == before
    assert path.rpartition("/")[2] in files(again, "orders-2")


def test_a_topic_that_could_not_be_deleted_is_served_no_more(house: House, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(5, "Input/output error")

    house.produce("orders", batch(b"old"))
    rename, house.files.rename = house.files.rename, refuse  # type: ignore[method-assign]
    house.delete("orders")
    assert house.fetch("orders").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "orders-0 could not be deleted" in caplog.text
    house.create("orders", 2)
    assert house.fetch("orders").error_code == ErrorCode.KAFKA_STORAGE_ERROR  # rather than the old topic's data
    house.files.rename = rename  # type: ignore[method-assign]
    assert House(house.files).end("orders") == 0


def test_a_directory_that_is_gone_is_spoken_of(house: House, caplog: pytest.LogCaptureFixture) -> None:
    house.produce("orders", batch(b"a"))
    house.data.close()
    for name in files(house, "orders-0"):
        house.files.unlink(f"data/orders-0/{name}")
    house.files.rmdir("data/orders-0")
    assert House(house.files).end("orders") == 0
    assert "orders-0: its directory was gone, with records up to 1" in caplog.text


def test_a_deleted_partition_gives_its_files_back_at_once(house: House) -> None:
    house.produce("orders", batch(b"a"))
    partition = weakref.ref(house.store.partition("orders", 0))
    file = weakref.ref(house.store.partition("orders", 0).log.segments[-1].file)
    gc.disable()
    try:
        house.delete("orders")
        assert partition() is None
        assert file() is None
    finally:
        gc.enable()


def test_a_partition_whose_files_are_damaged_is_offline_and_the_others_are_not(house: House) -> None:
    for partition in (0, 1):
        house.produce("orders", batch(b"a" * 100), partition=partition)
    house.store.partition("orders", 0).log.flush()
    house.data.write("recovery-point-offset-checkpoint")
    file = house.files.open("data/orders-0/00000000000000000000.log")
    file.pwrite(b"damaged", 80)
    again = House(house.files)
    assert again.produce("orders", batch(b"b"), partition=1).error_code == ErrorCode.NONE
    answer = again.produce("orders", batch(b"b"), partition=0)
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "orders-0" in answer.error_message


def test_a_changed_configuration_holds_at_once(house: House) -> None:
    change = ResourceChange(ConfigResource.TOPIC, "orders", [ConfigChange("max.message.bytes", "100")])
    house.authority.propose(AlterConfigs([change], house.config))
    assert house.produce("orders", batch(b"x" * 100)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    undo = ResourceChange(ConfigResource.TOPIC, "orders", [])
    house.authority.propose(AlterConfigs([undo], house.config, replaces=True))
    assert house.produce("orders", batch(b"x" * 100)).error_code == ErrorCode.NONE


def test_a_broker_wide_configuration_reaches_every_topic_that_does_not_set_its_own(house: House) -> None:
    house.create("own", max_message_bytes="1000")
    change = ResourceChange(ConfigResource.BROKER, "", [ConfigChange("message.max.bytes", "100")])
    house.authority.propose(AlterConfigs([change], house.config))
    assert house.produce("orders", batch(b"x" * 100)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert house.produce("own", batch(b"x" * 100)).error_code == ErrorCode.NONE


def test_a_power_cut_loses_no_topic_that_was_created() -> None:
    for seed in range(20):
        files = MemoryFiles()
        house = House(files)
        house.create("orders", 2)
        files.crash(Random(seed))
        again = House(files)
        assert again.produce("orders", batch(b"a"), partition=1).error_code == ErrorCode.NONE
