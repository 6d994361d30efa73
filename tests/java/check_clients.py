"""Kafka's own admin client and consumer against our broker: `make test-java`, where Maven and Java are.

The name of this file keeps it out of `make test`, which needs neither.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import clients_stock as stock
import pytest
from brokers import Broker, start_broker, unique
from proxy import Proxy

from minibroker.wire.apis import ApiKey
from minibroker.wire.headers import read_request_header
from minibroker.wire.tables.fetch import FetchRequest

HERE = Path(__file__).parent
ON_TOPIC = "ALTER,ALTER_CONFIGS,CREATE,DELETE,DESCRIBE,DESCRIBE_CONFIGS,READ,WRITE"
ON_CLUSTER = "ALTER,ALTER_CONFIGS,CLUSTER_ACTION,CREATE,DESCRIBE,DESCRIBE_CONFIGS,IDEMPOTENT_WRITE"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = start_broker(tmp_path_factory.mktemp("broker"))
    yield broker
    broker.stop()


def kafka_clients(command: str, broker: Broker | Proxy, topic: str) -> list[str]:
    """Run KafkaClients.java; return the lines that it printed."""
    program = ["-cp", os.environ["KAFKA_CLASSPATH"], str(HERE / "KafkaClients.java")]
    arguments = ["java", "-XX:TieredStopAtLevel=1", *program, command, broker.address, topic]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_a_topic_is_described_by_its_id_and_every_operation_is_authorized(broker: Broker) -> None:
    """KIP-516, KIP-430. By id the Java client sends an empty name, through Metadata."""
    topic = stock.create_topic(broker.address, unique("described"))
    assert kafka_clients("describe", broker, topic) == [
        f"topic {ON_TOPIC}",
        f"by id {topic} {ON_TOPIC}",
        "unknown id UnknownTopicIdException",
        f"cluster {ON_CLUSTER}",
    ]


def test_a_partition_assigned_without_an_offset_is_read_where_the_reset_says(broker: Broker) -> None:
    topic = stock.create_topic(broker.address, unique("assigned"))
    stock.confluent_write(broker.address, topic, [stock.Message(b"%d" % n) for n in range(2)])
    assert kafka_clients("assign", broker, topic) == ["record 0", "record 1", "committed null"]


def test_a_consumer_fetches_in_a_session(broker: Broker) -> None:
    """KIP-227: the first fetch begins a session, and the last one ends it."""
    topic = stock.create_topic(broker.address, unique("session"))
    stock.confluent_write(broker.address, topic, [stock.Message(b"%d" % n) for n in range(2)])
    with Proxy(broker.address) as proxy:
        assert kafka_clients("assign", proxy, topic) == ["record 0", "record 1", "committed null"]
        fetches = [_fetch(it.request) for it in proxy.requests if it.api_key == ApiKey.FETCH]
    assert [it.session_epoch for it in fetches] == [*range(len(fetches) - 1), -1]
    assert len({it.session_id for it in fetches[1:]}) == 1
    assert fetches[-1].session_id > 0


def _fetch(frame: bytes) -> FetchRequest:
    header, position = read_request_header(memoryview(frame))
    return FetchRequest.decode(memoryview(frame), position, header.api_version)[0]
