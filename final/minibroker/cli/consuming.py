"""Reads a topic and writes its records to stdout, for `minibroker consume`."""

import itertools
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import click

from minibroker.cli.connecting import connected, demand_topics
from minibroker.cli.formats import Piece
from minibroker.clients.blocking import Client
from minibroker.clients.consumer import READ_COMMITTED, READ_UNCOMMITTED, Consumer, OffsetReset
from minibroker.clients.errors import CommitRefused
from minibroker.clients.fetched import FetchedBatches
from minibroker.clients.group_consumer import GroupConsumer, GroupProtocol
from minibroker.clients.membership import MemberConfig
from minibroker.log.record import Record
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.tables.metadata import MetadataResponseTopic

POLL_MS = 1000
_KILLED = 128  # plus the number of the signal: the exit code of a process that a signal has ended
ISOLATION = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}


@dataclass(frozen=True)
class Start:
    """Where to begin. At most one field is set; if none is, reading begins with the next new record."""

    is_beginning: bool = False
    offset: int | None = None  # negative: counted from the end
    time_ms: int | None = None


@dataclass(frozen=True)
class Membership:
    """The group, its topic or pattern, its protocol, and whether partitions without a committed offset are read from
    the beginning."""

    group: str
    topic: str | None
    pattern: str | None
    protocol: str | None
    is_beginning: bool


def consume(
    bootstrap: str,
    topic: str,
    start: Start,
    *,
    partition: int | None,
    count_max: int | None,
    exits_at_end: bool,
    isolation: str,
    write: Piece,
) -> None:
    """Read until Ctrl-C, up to `count_max` records, or with `exits_at_end` to the present end of each partition."""
    if count_max == 0:
        return
    with connected(bootstrap) as client:
        partitions = chosen(demand_topics(client, [topic])[0], partition)
        # Records that retention deletes before they are read are skipped.
        level = ISOLATION[isolation]
        with Consumer(client, offset_reset=OffsetReset.EARLIEST, isolation_level=level) as consumer:
            ends = consumer.end_offsets(partitions)
            offsets = start_offsets(consumer, start, ends)
            stops = ends if exits_at_end else {}
            consumer.assign([it for it in partitions if offsets[it] < stops.get(it, offsets[it] + 1)], offsets)
            for fetched, record in itertools.islice(read(consumer, stops), count_max):
                sys.stdout.buffer.write(write(fetched.topic, fetched.partition, record))
    sys.stdout.buffer.flush()


def chosen(topic: MetadataResponseTopic, partition: int | None) -> list[TopicPartition]:
    """The named partition, or all partitions of the topic."""
    numbers = sorted(it.partition_index for it in topic.partitions)
    name = topic.name or ""
    if partition is not None and partition not in numbers:
        raise click.ClickException(f"{name} has no partition {partition}: its partitions are 0 to {numbers[-1]}")
    return [TopicPartition(name, number) for number in numbers if partition in (None, number)]


def start_offsets(consumer: Consumer, start: Start, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The offset at which to begin in each partition."""
    if start.time_ms is not None:
        times = consumer.offsets_for_times(dict.fromkeys(ends, start.time_ms))
        return {it: found.offset if found else ends[it] for it, found in times.items()}
    if start.offset is None and not start.is_beginning:
        return dict(ends)
    beginnings = consumer.beginning_offsets(ends)
    if start.offset is None:
        return beginnings
    if start.offset < 0:
        return {it: max(beginnings[it], end + start.offset) for it, end in ends.items()}
    for it, end in ends.items():
        if not beginnings[it] <= start.offset <= end:
            raise click.ClickException(
                f"offset {start.offset} is not in {it}, whose log starts at {beginnings[it]} and ends before {end}: "
                f"give an offset from {beginnings[it]} to {end}, another --partition, or --from-beginning"
            )
    return dict.fromkeys(ends, start.offset)


def read(consumer: Consumer, stops: Mapping[TopicPartition, int]) -> Iterator[tuple[FetchedBatches, Record]]:
    """Yield records as they arrive. The iterator ends when every partition has reached its stop offset."""
    open_ones = set(consumer.assignment)
    while open_ones:
        for fetched in consumer.poll(POLL_MS):
            name = fetched.topic_partition
            stop = stops.get(name)
            for record in fetched:
                if stop is None or record.offset < stop:
                    yield fetched, record
            if stop is not None and fetched.next_offset >= stop:
                open_ones.discard(name)
                consumer.pause([name])
        # The output is flushed, so that a person who watches sees each record when it arrives.
        sys.stdout.buffer.flush()


# In a group ---------------------------------------------------------------------------------------------------------


def consume_in_group(
    bootstrap: str,
    membership: Membership,
    *,
    count_max: int | None,
    exits_at_end: bool,
    isolation: str,
    write: Piece,
) -> None:
    """Read as a member of a group; with `exits_at_end`, until the group has committed each partition's present end.

    Ctrl-C and SIGTERM leave the group, so that the other members need not wait until the session has expired.
    """
    if count_max == 0:
        return
    signal.signal(signal.SIGTERM, _end)
    reset = OffsetReset.EARLIEST if membership.is_beginning else OffsetReset.LATEST
    protocol = None if membership.protocol is None else GroupProtocol(membership.protocol)
    with connected(bootstrap) as client:
        partitions = [it for topic in _topics(client, membership) for it in chosen(topic, None)]
        topics = [] if membership.topic is None else [membership.topic]
        config = MemberConfig(membership.group, topics, membership.pattern)
        # Auto-commit is off, because `_copy` commits the offsets as soon as it has written the records.
        with GroupConsumer(
            client,
            config,
            protocol=protocol,
            offset_reset=reset,
            enable_auto_commit=False,
            isolation_level=ISOLATION[isolation],
        ) as consumer:
            ends = consumer.end_offsets(partitions) if exits_at_end else {}
            left = count_max
            while left != 0 and not (exits_at_end and has_reached(consumer, ends)):
                left = _copy(consumer, write, left)


def _end(number: int, _frame: object) -> None:
    raise SystemExit(_KILLED + number)


def _topics(client: Client, membership: Membership) -> list[MetadataResponseTopic]:
    """The topic that the membership names, or the topics that match its pattern now."""
    if membership.topic is not None:
        return demand_topics(client, [membership.topic])
    pattern = re.compile(membership.pattern or "")
    return [it for it in client.metadata().topics if not it.is_internal and it.name and pattern.fullmatch(it.name)]


def has_reached(consumer: GroupConsumer, ends: Mapping[TopicPartition, int]) -> bool:
    """Whether the group has committed these offsets; a partition without records needs no commit."""
    committed = consumer.committed(ends)
    missing = [it for it, end in ends.items() if committed.get(it, 0) < end]
    beginnings = consumer.beginning_offsets(missing) if missing else {}
    return all(it not in committed and beginnings[it] == ends[it] for it in missing)


def _copy(consumer: GroupConsumer, write: Piece, left: int | None) -> int | None:
    """Write the records that have arrived, at most `left`, and then commit; return how many more may be written."""
    written: dict[TopicPartition, int] = {}
    for fetched in consumer.poll(POLL_MS):
        for record in fetched:
            if left == 0:
                break
            sys.stdout.buffer.write(write(fetched.topic, fetched.partition, record))
            written[fetched.topic_partition] = record.offset + 1
            left = None if left is None else left - 1
        else:
            # The records at the end of a batch may have been compacted away, so the batch gives the next offset.
            written[fetched.topic_partition] = fetched.next_offset
    # Records are written before their offsets are committed: a crash may repeat records, but loses none.
    sys.stdout.buffer.flush()
    try:
        consumer.commit(written or None)
    except CommitRefused as error:
        click.echo(f"{error}; other members may write these records again", err=True)
    return left
