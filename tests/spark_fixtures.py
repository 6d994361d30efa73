"""The fixtures of the Spark tests: name them with `pytest_plugins = ["clients_fixtures", "spark_fixtures"]`.

One session for all modules that a process runs: a JVM takes seconds to start. Import nothing from here:
pytest must be the first to import it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from brokers import Broker, unique
from spark_settings import QUICK

from minibroker.clients import admin
from minibroker.clients.blocking import Client
from minibroker.clients.producer import Producer
from minibroker.segments.checkpoint import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="session")
def quick_conf() -> dict[str, str]:
    """The settings of the shared session, for one in a process of its own."""
    return dict(QUICK)


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """The session of the suite; a failed task is repeated, as on a cluster."""
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from minibroker.spark.java import session

    shared = session("tests", "local[2,4]", **QUICK)
    yield shared
    shared.stop()


class Topics:
    """Topics of one test on the shared broker, and how Spark reads them."""

    def __init__(self, broker: Broker, spark: "SparkSession | None" = None) -> None:
        self._spark = spark
        self.address = broker.address
        self.client = Client(broker.address)

    @property
    def spark(self) -> "SparkSession":
        assert self._spark is not None, "take the fixture `topics`"
        return self._spark

    def create(self, partitions: int = 1, name: str = "") -> str:
        name = name or unique("spark")
        # The records of some tests are from 1970, and the broker looks for old ones all the time.
        configs = {"retention.ms": "-1"}
        admin.create_topics(self.client, [admin.NewTopic(name, partitions=partitions, configs=configs)])
        return name

    def produce(
        self, topic: str, count: int, *, partition: int = 0, first: int = 0, timestamps: list[int] | None = None
    ) -> None:
        """Values v0, v1, … with keys k0, k1, …"""
        with Producer(self.client) as producer:
            for number in range(first, first + count):
                timestamp = timestamps[number - first] if timestamps else None
                producer.send(
                    topic,
                    b"v%d" % number,
                    key=b"k%d" % number,
                    partition=partition,
                    timestamp=timestamp,
                    headers=[("n", b"%d" % number)],
                )

    def delete_before(self, topic: str, offset: int, *, partition: int = 0) -> None:
        admin.delete_records(self.client, {TopicPartition(topic, partition): offset})

    def read(self, topic: str = "", **options: object) -> "DataFrame":
        return self.spark.read.format("minibroker").options(**self.options(topic, options)).load()

    def stream(self, topic: str = "", **options: object) -> "DataFrame":
        return self.spark.readStream.format("minibroker").options(**self.options(topic, options)).load()

    def options(self, topic: str, options: dict[str, object]) -> dict[str, str]:
        """With __ for a dot: kafka__isolation__level."""
        given = {name.replace("__", "."): str(value) for name, value in options.items()}
        named = {"subscribe": topic} if topic else {}
        return {"kafka.bootstrap.servers": self.address} | named | given


@pytest.fixture
def topics(spark: "SparkSession", broker: Broker) -> Iterator[Topics]:
    """Topics of its own for a test."""
    made = Topics(broker, spark)
    yield made
    made.client.close()


@pytest.fixture
def plain_topics(broker: Broker) -> Iterator[Topics]:
    """The same for a test that needs no session, only what the session would call."""
    from minibroker.spark.connecting import close_clients

    made = Topics(broker)
    yield made
    made.client.close()
    close_clients()
