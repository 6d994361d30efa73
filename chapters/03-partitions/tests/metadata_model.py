"""Shared by the tests of the metadata: a voter on a disk in memory, and short ways to write a command."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from minibroker.log.memory import MemoryFiles
from minibroker.metadata.authority import METADATA_LOG_CONFIG, Voter
from minibroker.metadata.broker_commands import RegisterBroker
from minibroker.metadata.config_commands import AlterConfigs, ConfigChange, ConfigOperation, ResourceChange
from minibroker.metadata.config_keys import ConfigResource
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.image import Endpoint, Image, fold_all
from minibroker.metadata.records import BrokerEndpoint, RegisterBrokerRecord
from minibroker.metadata.topic_commands import CreatedTopic, CreateTopics, NewTopic
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.config import LogConfig
from minibroker.segments.directory import DataDirectory
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.codes import ErrorCode

NODE = NodeConfig()
NOW_MS = 1_700_000_000_000
METADATA = TopicPartition("__cluster_metadata", 0)
LOG_FILE = "data/__cluster_metadata-0/00000000000000000000.log"


@contextmanager
def case(*values: object) -> Iterator[None]:
    """Show the values of one round of a loop in its failure."""
    try:
        yield
    except BaseException as failure:
        failure.add_note(f"failed for {', '.join(map(repr, values))}")
        raise


def topic_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def open_log(files: MemoryFiles, config: LogConfig = METADATA_LOG_CONFIG) -> SegmentedLog:
    return DataDirectory(files, "data").open_log(METADATA, config)


def open_voter(files: MemoryFiles, config: LogConfig = METADATA_LOG_CONFIG) -> Voter:
    return Voter(open_log(files, config), cluster_id="a-cluster", clock=lambda: NOW_MS)


def registered_voter(files: MemoryFiles, broker_id: int = 1) -> Voter:
    """A voter with one live broker, as on a started node."""
    voter = open_voter(files)
    registration = voter.propose(RegisterBroker(broker_id, [Endpoint("PLAINTEXT", "127.0.0.1", 9092)], topic_id(99)))
    assert registration.result.code == ErrorCode.NONE
    return voter


def brokers(*live: int, fenced: Sequence[int] = ()) -> Image:
    """An image with brokers only."""
    records = [
        RegisterBrokerRecord(
            broker_id=node_id,
            incarnation_id=topic_id(node_id + 1),
            broker_epoch=offset,
            end_points=[BrokerEndpoint(name="PLAINTEXT", host=f"host-{node_id}", port=9092, security_protocol=0)],
            fenced=node_id in fenced,
        )
        for offset, node_id in enumerate([*live, *fenced])
    ]
    return fold_all(Image(cluster_id="a-cluster"), enumerate(records))


def create(
    voter: Voter, name: str, number: int, *, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> CreatedTopic:
    """Create one topic and return its result."""
    topic = NewTopic(name, topic_id(number), partitions, 1, configs=dict(configs or {}))
    (result,) = voter.propose(CreateTopics([topic], NODE)).result
    return result


def alter(kind: ConfigResource, name: str, *changes: ConfigChange, validate_only: bool = False) -> AlterConfigs:
    return AlterConfigs([ResourceChange(kind, name, changes)], NODE, validate_only=validate_only)


def setting(name: str, value: str | None, operation: int = ConfigOperation.SET) -> ConfigChange:
    return ConfigChange(name, value, operation)
