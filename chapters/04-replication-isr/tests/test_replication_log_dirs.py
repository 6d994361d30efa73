"""DescribeLogDirs, in every version."""

import pytest
from partitions_house import House, batch

from minibroker.replication.log_dirs import DescribeLogDirs
from minibroker.replication.tables.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from minibroker.wire.apis import APIS, ApiKey


@pytest.fixture
def house() -> House:
    house = House()
    house.registry.add(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirs(house.store.logs, lambda: ("data", 1000, 600)))
    house.create("orders", 3)
    house.create("other")
    return house


@pytest.mark.parametrize(
    "version", range(APIS[ApiKey.DESCRIBE_LOG_DIRS].min_version, APIS[ApiKey.DESCRIBE_LOG_DIRS].max_version + 1)
)
def test_log_dirs_show_sizes(house: House, version: int) -> None:
    sent = batch(b"a")
    house.produce("orders", sent, partition=1)
    wanted = [DescribableLogDirTopic(topic="orders", partitions=[0, 1])]
    (result,) = house.ask(DescribeLogDirsRequest(topics=wanted), version).results
    assert [(topic.name, [it.partition_size for it in topic.partitions]) for topic in result.topics] == [
        ("orders", [0, len(sent)])
    ]
    (everything,) = house.ask(DescribeLogDirsRequest(topics=None), version).results
    assert {topic.name for topic in everything.topics} == {"orders", "other"}
    if version >= 4:
        assert (result.total_bytes, result.usable_bytes) == (1000, 600)
