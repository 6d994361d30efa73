"""DescribeLogDirs, in every version."""

import pytest
from cases import case
from partitions_broker import MemoryBroker, batch

from minibroker.replication.log_dirs import DescribeLogDirs
from minibroker.replication.tables.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from minibroker.wire.apis import APIS, ApiKey


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker()
    broker.registry.add(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirs(broker.store.logs, lambda: ("data", 1000, 600)))
    broker.create("orders", 3)
    broker.create("other")
    return broker


def test_log_dirs_show_sizes(broker: MemoryBroker) -> None:
    sent = batch(b"a")
    broker.produce("orders", sent, partition=1)
    for version in range(APIS[ApiKey.DESCRIBE_LOG_DIRS].min_version, APIS[ApiKey.DESCRIBE_LOG_DIRS].max_version + 1):
        with case(version):
            wanted = [DescribableLogDirTopic(topic="orders", partitions=[0, 1])]
            (result,) = broker.ask(DescribeLogDirsRequest(topics=wanted), version).results
            assert [(topic.name, [it.partition_size for it in topic.partitions]) for topic in result.topics] == [
                ("orders", [0, len(sent)])
            ]
            (everything,) = broker.ask(DescribeLogDirsRequest(topics=None), version).results
            assert {topic.name for topic in everything.topics} == {"orders", "other"}
            if version >= 4:
                assert (result.total_bytes, result.usable_bytes) == (1000, 600)
