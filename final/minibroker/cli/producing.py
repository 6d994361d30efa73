"""Writes the lines of stdin to a topic, for `minibroker produce`."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from minibroker.cli.connecting import connected, is_unknown, no_such_topic
from minibroker.cli.tables import counted
from minibroker.client.errors import BrokerError
from minibroker.clients.batching import Delivery
from minibroker.clients.blocking import Client
from minibroker.clients.producer import Producer
from minibroker.clients.transactional import TransactionalProducer
from minibroker.log.compression import Compression

ACKS = {"0": 0, "1": 1, "all": -1}
CREATION_ATTEMPTS, CREATION_PAUSE_S = 10, 0.1


def produce(
    bootstrap: str,
    topic: str,
    *,
    key_separator: bytes | None,
    partition: int | None,
    acks: str,
    compression: str,
    transactional_id: str | None = None,
) -> None:
    """Send a record for each line of stdin, and wait until all are acknowledged, or committed in one transaction."""
    sent = Sent()
    codec = Compression[compression.upper()]
    with connected(bootstrap) as client:
        demand_or_create(client, topic)
        with (
            (
                Producer(client, acks=ACKS[acks], compression=codec)
                if transactional_id is None
                else TransactionalProducer(client, transactional_id, compression=codec)
            ) as producer,
            _transaction(producer),
        ):
            if sys.stdin.isatty():
                click.echo("each line is a record; end with Ctrl-D", err=True)
            for key, value in records(key_separator):
                producer.send(topic, value, key=key, partition=partition, on_delivery=sent.on_delivery)
                sent.raise_if_refused()
            producer.flush()
            sent.raise_if_refused()
    if sys.stdin.isatty():
        click.echo(f"{counted(sent.count, 'record')} written to {topic}", err=True)


@contextmanager
def _transaction(producer: Producer) -> Iterator[None]:
    """One transaction, if the producer is transactional: committed at the end, or aborted after an exception."""
    if not isinstance(producer, TransactionalProducer):
        yield
        return
    producer.init()
    with producer.transaction():
        yield


class Sent:
    """Counts the acknowledged records, and remembers the first that was refused."""

    def __init__(self) -> None:
        self.count = 0
        self.refused: Delivery | None = None

    def on_delivery(self, delivery: Delivery) -> None:
        """Count a record, or remember that it was refused."""
        if delivery.error is None:
            self.count += 1
        elif self.refused is None:
            self.refused = delivery

    def raise_if_refused(self) -> None:
        """Fail the command if a record was refused."""
        if self.refused is not None:
            where = f"{self.refused.topic}-{self.refused.partition}"
            reason = str(self.refused.error).removeprefix(f"{where}: ")
            raise click.ClickException(
                f"{counted(self.count, 'record')} written, then {where} refused a record: {reason}"
            )


def records(key_separator: bytes | None) -> Iterator[tuple[bytes | None, bytes]]:
    """The lines of stdin as keys and values; a line without the separator has no key."""
    for line in iter(sys.stdin.buffer.readline, b""):
        text = line.removesuffix(b"\n")
        if key_separator is None or key_separator not in text:
            yield None, text
        else:
            key, _separator, value = text.partition(key_separator)
            yield key, value


def demand_or_create(client: Client, topic: str) -> None:
    """Have the broker create a topic that does not exist, if its auto.create.topics.enable allows it."""
    others = [other.name or "" for other in client.metadata().topics]
    if topic in others:
        return
    for _attempt in range(CREATION_ATTEMPTS):
        found = client.metadata([topic], allow_auto_topic_creation=True).topics[0]
        if not found.error_code:
            click.echo(f"created topic {topic}: {counted(len(found.partitions), 'partition')}", err=True)
            return
        if not is_unknown(found.error_code) and not BrokerError(found.error_code).code.is_retriable:
            raise BrokerError(found.error_code, about=f"topic {topic}")
        # A node learns of a new topic a moment after it was created.
        time.sleep(CREATION_PAUSE_S)
    missing = no_such_topic(topic, others)
    hint = f"The broker does not create topics by itself: run `minibroker topics create {topic}`"
    raise click.ClickException(f"{missing.message}{'' if missing.message.endswith('?') else '.'} {hint}")
