"""Offsets in Spark's log and in the cluster, and how ranges of offsets are limited and split.

Offsets have the JSON format of Spark's Kafka connector, `{"orders":{"0":23,"1":42}}`. The document of a batch's end may
also have the key STARTS, which no topic can have as its name. It holds the starts of partitions that are not in the
document of the batch's start. Spark logs the end of a batch before it runs the batch, so these starts are pinned: a
batch that is repeated after a crash begins at the same offsets. The key IDS holds the topics' ids, because the offsets
of a topic mean nothing in another one that was created later under the same name.
"""

import itertools
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from minibroker.client.errors import BrokerError, BrokerUnavailable, ConnectionLost, RequestTimedOut
from minibroker.clients import admin, group_admin
from minibroker.clients.blocking import Client
from minibroker.clients.errors import BrokerErrors
from minibroker.clients.fetching import EARLIEST, LATEST
from minibroker.log.clock import precise_ms
from minibroker.segments.checkpoint import TopicPartition
from minibroker.spark.connecting import new_client
from minibroker.spark.errors import DataLoss, InvalidOption, UnknownTopic
from minibroker.spark.options import Place, ReadOptions, Subscription, SubscriptionKind
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.metadata import MetadataResponse
from minibroker.wire.uuids import NO_UUID, uuid_text

T = TypeVar("T")
Offsets: TypeAlias = dict[TopicPartition, int]
Document: TypeAlias = dict[str, Any]

STARTS, IDS = "$start", "$ids"
_SURVEYS_MAX = 3
_NAMES_MAX = 5  # a message lists at most this many partitions

_log = logging.getLogger(__name__)


class Range(NamedTuple):
    """Offsets of one partition; `until` is exclusive."""

    topic: str
    partition: int
    start: int
    until: int

    @property
    def size(self) -> int:
        """The number of offsets; compaction may have left fewer records."""
        return self.until - self.start


# JSON ----------------------------------------------------------------------------------------------------------------


def to_document(
    offsets: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int] | None = None,
    ids: Mapping[str, str] | None = None,
) -> Document:
    """Return offsets for Spark's log, sorted, because Spark compares them as text."""
    document: Document = {}
    for (topic, partition), offset in sorted(offsets.items()):
        document.setdefault(topic, {})[str(partition)] = offset
    if starts:
        document[STARTS] = to_document(starts)
    if ids:
        document[IDS] = {topic: ids[topic] for topic in sorted({it.topic for it in offsets}) if topic in ids}
    return document


def from_document(document: Document) -> Offsets:
    """Return the offsets of a document, without the pinned starts and the ids."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in document.items()
        if topic not in (STARTS, IDS)
        for partition, offset in partitions.items()
    }


def ranges_between(start: Document, end: Document) -> list[Range]:
    """Return the ranges of a batch, which depend only on its start and its end."""
    starts = from_document(start) | from_document(end.get(STARTS, {}))
    ends = from_document(end)
    unknown = [partition for partition in ends if partition not in starts]
    if unknown:
        raise DataLoss(f"the checkpoint has no start for {names(unknown)}: it was not written by this source")
    return [Range(*it, starts[it], until) for it, until in sorted(ends.items()) if until > starts[it]]


def names(partitions: Iterable[TopicPartition]) -> str:
    """Return the names of the first few partitions, and the number of the others."""
    found = sorted(partitions)
    more = f" and {len(found) - _NAMES_MAX} more" if len(found) > _NAMES_MAX else ""
    return ", ".join(str(it) for it in found[:_NAMES_MAX]) + more


# Limits and splits ---------------------------------------------------------------------------------------------------


def limited(starts: Offsets, ends: Offsets, offsets_max: int) -> Offsets:
    """Limit the ends to `offsets_max` offsets in total, shared in proportion to the offsets of each partition."""
    sizes = {it: ends[it] - starts[it] for it in sorted(ends) if ends[it] > starts[it]}
    total = sum(sizes.values())
    if total <= offsets_max:
        return ends
    shares = {it: offsets_max * size // total for it, size in sizes.items()}
    # Rounding leaves a few offsets over. Each goes to another partition. The first of these partitions moves on by one
    # with each limited batch, so that none waits for ever.
    left = offsets_max - sum(shares.values())
    order = list(sizes)
    turn = sum(starts.values()) // offsets_max % len(order)
    for partition in (order[turn:] + order[:turn])[:left]:
        shares[partition] += 1
    return {it: starts[it] + shares[it] if it in shares else end for it, end in ends.items()}


def split(ranges: Iterable[Range], *, partitions_min: int | None, records_max: int | None) -> list[Range]:
    """Cut ranges into pieces of at most `records_max` offsets; cut further if there are fewer than `partitions_min`."""
    pieces = [piece for it in ranges if it.size > 0 for piece in _cut(it, -(-it.size // (records_max or it.size)))]
    if partitions_min is None or len(pieces) >= partitions_min:
        return pieces
    total = sum(it.size for it in pieces)
    # Each range too small to be cut counts as one piece; the other pieces are shared by the large ranges.
    small = [it for it in pieces if _share(it.size, partitions_min, total) == 1]
    wanted, large = max(1, partitions_min - len(small)), total - sum(it.size for it in small)
    counts = {it: 1 if it in small else _share(it.size, wanted, large) for it in pieces}
    return [piece for it in pieces for piece in _cut(it, counts[it])]


def _share(size: int, count: int, total: int) -> int:
    """Return `count * size / total`, rounded, but at least 1."""
    return max(1, (2 * size * count + total) // (2 * total))


def _cut(whole: Range, count: int) -> list[Range]:
    """Cut a range into pieces whose sizes differ by at most one; none is empty."""
    count = min(count, whole.size)
    edges = [whole.start + whole.size * number // count for number in range(count + 1)]
    return [whole._replace(start=start, until=until) for start, until in itertools.pairwise(edges)]


# The cluster ---------------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """The partitions of a subscription that exist, the names in it that do not, and the ids of the topics."""

    partitions: list[TopicPartition]
    missing: list[str]
    ids: dict[str, str]

    def remade(self, ids: Mapping[str, str]) -> list[str]:
        """Return the topics that had other ids: they were deleted and created again."""
        return [topic for topic, had in sorted(ids.items()) if self.ids.get(topic, had) != had]


class Cluster:
    """Requests the partitions of a query and their offsets from the brokers, for the driver."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._client: Client | None = None
        self._has_answered = False
        self._warned: set[str] = set()
        self._found: Found | None = None
        self._found_ms = 0.0
        self._committed: Offsets = {}
        self.given_up: set[str] = set()

    def close(self) -> None:
        """Close the connections; the next request opens them again."""
        if self._client is not None:
            self._client.close()
        self._client = None

    def _ask(self, question: Callable[[Client], T]) -> T:
        """Repeat a request until a broker answers. If none ever has, fail at once: the address may be wrong."""
        deadline_ms = precise_ms() + self._options.client.timeout_ms
        while True:
            self._client = self._client or new_client(self._options.client)
            try:
                answer = question(self._client)
            except (BrokerUnavailable, ConnectionLost, RequestTimedOut):
                if not self._has_answered or precise_ms() >= deadline_ms:
                    raise
                time.sleep(self._options.client.backoff_ms / 1000)
                continue
            self._has_answered = True
            return answer

    def lose(self, what: str) -> None:
        """Fail because records are gone, or warn once and continue, as `failOnDataLoss` says."""
        if self._options.fails_on_data_loss:
            raise DataLoss(f"{what}; to continue with the records that are left, set failOnDataLoss=false")
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("%s; continuing with the records that are left, because failOnDataLoss=false", what)

    # Partitions ------------------------------------------------------------------------------------------------------

    def find(self) -> Found:
        """Return the partitions that the query reads, from a cache if partition.metadata.cache.ttl.ms allows it."""
        if self._found is None or precise_ms() - self._found_ms >= self._options.partitions_age_ms_max:
            subscription = self._options.subscription
            wanted = _topics_of(subscription)
            self._found = _found(subscription, self._ask(lambda client: client.metadata(wanted)))
            self._found_ms = precise_ms()
        return self._found

    def is_named(self, partition: TopicPartition) -> bool:
        """Tell whether the query names a partition, even if it does not exist."""
        subscription = self._options.subscription
        if subscription.kind is SubscriptionKind.PATTERN:
            return re.search(subscription.pattern, partition.topic) is not None
        return partition.topic in subscription.topics or partition in subscription.partitions

    def demand(self) -> list[TopicPartition]:
        """Return the partitions of a new query; all topics and partitions that it names must exist."""
        found = self.find()
        if found.missing:
            option = self._options.subscription.kind.value
            raise UnknownTopic(
                f"{option}: not in the cluster: {', '.join(found.missing)}; create what is missing first"
            )
        return found.partitions

    # Offsets ---------------------------------------------------------------------------------------------------------

    def commit(self, offsets: Offsets) -> None:
        """Commit a stream's progress to the group of the query, for tools that show its lag."""
        group_id = self._options.commit_group
        if group_id is None or offsets == self._committed:
            return
        try:
            self._ask(lambda client: group_admin.commit_offsets(client, group_id, offsets))
        except (BrokerErrors, BrokerError) as error:
            raise InvalidOption(
                f"kafka.group.id: the offsets were not committed ({error}); give the query a group that no consumer"
                " uses, or remove commitOffsets"
            ) from error
        self._committed = offsets

    def survey(self, begun: Offsets | None = None, ids: Mapping[str, str] | None = None) -> tuple[Found, Offsets]:
        """Return the partitions and their ends.

        If the positions `begun` of a stream, or the ids of its topics, suggest that records are gone, ask again: a node
        that has just started, or has just become the leader, may not know all topics, partitions and offsets yet.
        """
        for _ in range(self._options.looks_max - 1):
            found, latest = self._survey()
            if not begun or not (self._is_doubtful(begun, found, latest) or found.remade(ids or {})):
                return found, latest
            self._found = None
            time.sleep(self._options.look_interval_ms / 1000)
        return self._survey()

    def _is_doubtful(self, begun: Offsets, found: Found, latest: Offsets) -> bool:
        is_cut = any(latest[it] < offset for it, offset in begun.items() if it in latest)
        return is_cut or bool(begun.keys() - set(found.partitions) or set(found.missing) - self.given_up)

    def _survey(self) -> tuple[Found, Offsets]:
        """Request the partitions, then their offsets; start again if a topic is deleted in between."""
        for _ in range(_SURVEYS_MAX - 1):
            found = self.find()
            try:
                return found, self.latest(found.partitions)
            except BrokerError as error:
                if error.code not in _ABSENT:
                    raise
                self._found = None
        found = self.find()
        return found, self.latest(found.partitions)

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return the first offset of each partition."""
        return self._look_up(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return the end of each partition: the offset after the last record that may be read."""
        return self._look_up(dict.fromkeys(partitions, LATEST))

    def at_times(self, times: Mapping[TopicPartition, int]) -> Offsets:
        """Return the first offset at or after a time in ms; -1 if no record is that new."""
        return self._look_up(times)

    def _look_up(self, timestamps: Mapping[TopicPartition, int]) -> Offsets:
        if not timestamps:
            return {}
        level = self._options.client.isolation_level
        found = self._ask(lambda client: admin.list_offsets(client, timestamps, isolation_level=level))
        return {partition: it.offset for partition, it in found.items()}

    def span(self, partitions: list[TopicPartition]) -> tuple[Offsets, Offsets]:
        """Return the starts and the ends of a batch; no end may be before its start."""
        starts, ends = self.starts(partitions), self.ends(partitions)
        # Exception: with `is_latest_if_no_match`, a partition without a record that is new enough starts at the log's
        # end. That may be after the batch's end, and then the partition has nothing to read.
        backward = [] if self._options.is_latest_if_no_match else [it for it in partitions if ends[it] < starts[it]]
        for it in backward[:1]:
            ending, starting = self._options.ending.option, self._options.starting.option
            raise InvalidOption(
                f"{ending}: {it} would end at offset {ends[it]}, before its start at {starts[it]}; see {starting}"
            )
        return starts, ends

    def starts(self, partitions: list[TopicPartition]) -> Offsets:
        """Return the starts of a new query."""
        return self._at(self._options.starting, partitions, is_start=True)

    def ends(self, partitions: list[TopicPartition]) -> Offsets:
        """Return the ends of a batch."""
        return self._at(self._options.ending, partitions, is_start=False)

    def _at(self, place: Place, partitions: list[TopicPartition], *, is_start: bool) -> Offsets:
        wanted = dict(place.each) if place.everywhere is None else dict.fromkeys(partitions, place.everywhere)
        _check_complete(place, partitions)
        if place.is_time:
            return self._at_times(place, wanted, is_start=is_start)
        known = {it: offset for it, offset in wanted.items() if offset >= 0}
        asked = self._look_up({it: offset for it, offset in wanted.items() if offset < 0})
        return asked | self._within_log(place, known)

    def _at_times(self, place: Place, times: Offsets, *, is_start: bool) -> Offsets:
        found = self.at_times(times)
        none = [partition for partition, offset in found.items() if offset < 0]
        if none and is_start and not self._options.is_latest_if_no_match:
            raise InvalidOption(
                f"{place.option}: {names(none)} has no record at or after {times[min(none)]} ms; choose an earlier"
                " time, or set startingOffsetsByTimestampStrategy=latest"
            )
        return found | self.latest(none)

    def _within_log(self, place: Place, offsets: Offsets) -> Offsets:
        earliest, latest = self.earliest(offsets), self.latest(offsets)
        for partition, offset in offsets.items():
            if not earliest[partition] <= offset <= latest[partition]:
                has = f"starts at {earliest[partition]} and ends at {latest[partition]}"
                self.lose(f"{place.option}: offset {offset} is not in {partition}, whose log {has}")
        return {it: min(max(offset, earliest[it]), latest[it]) for it, offset in offsets.items()}


def _topics_of(subscription: Subscription) -> list[str] | None:
    if subscription.kind is SubscriptionKind.PATTERN:
        return None
    return sorted({*subscription.topics, *(it.topic for it in subscription.partitions)})


def _found(subscription: Subscription, response: MetadataResponse) -> Found:
    there: set[TopicPartition] = set()
    ids: dict[str, str] = {}
    for topic in response.topics:
        if topic.error_code in _ABSENT or not topic.name:
            continue
        if topic.error_code and not topic.partitions:
            raise BrokerError(topic.error_code, about=f"topic {topic.name}")
        if subscription.kind is not SubscriptionKind.PATTERN or _matches(subscription.pattern, topic):
            there |= {TopicPartition(topic.name, it.partition_index) for it in topic.partitions}
            if topic.topic_id != NO_UUID:
                ids[topic.name] = uuid_text(topic.topic_id)
    if subscription.kind is SubscriptionKind.ASSIGNED:
        missing = [str(it) for it in sorted(subscription.partitions - there)]
        return Found(sorted(there & subscription.partitions), missing, ids)
    topics = {it.topic for it in there}
    return Found(sorted(there), [it for it in subscription.topics if it not in topics], ids)


_ABSENT = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


def _matches(pattern: str, topic: Any) -> bool:
    return not topic.is_internal and re.search(pattern, topic.name) is not None


def _check_complete(place: Place, partitions: list[TopicPartition]) -> None:
    if place.everywhere is not None:
        return
    there, given = set(partitions), set(place.each)
    if there - given:
        hint = "" if place.is_time else "; -2 is earliest, -1 latest"
        raise InvalidOption(f"{place.option}: {names(there - given)} is missing; name every partition{hint}")
    if given - there:
        raise InvalidOption(f"{place.option}: {names(given - there)} is not among the partitions that are read")


# Progress of a stream ------------------------------------------------------------------------------------------------


class Progress(NamedTuple):
    """The starts and ends of the next batch; `pinned` are the starts that the last batch's end does not have."""

    starts: Offsets
    ends: Offsets
    pinned: Offsets


def progress(
    cluster: Cluster, begun: Offsets, found: Found, latest: Offsets, ids: Mapping[str, str] | None = None
) -> Progress:
    """Compare a stream's positions with the cluster, to find new partitions, deleted ones and truncated logs."""
    for topic in found.remade(ids or {}):
        cluster.lose(
            f"topic {topic} was deleted and created again under its name, and the checkpoint has the offsets of the old"
            " one; to read the new one, give the query a new checkpoint"
        )
        begun = {it: offset for it, offset in begun.items() if it.topic != topic}
    # The stream has a position in these partitions, but they are no longer found.
    gone = sorted(set(begun) - set(found.partitions))
    unnamed = [it for it in gone if not cluster.is_named(it)]
    if unnamed:
        cluster.lose(
            f"{names(unnamed)}: the checkpoint has them, but this query does not read them; if another query wrote the"
            " checkpoint, give this one a checkpoint of its own"
        )
    if len(gone) > len(unnamed):
        cluster.lose(
            f"{names(set(gone) - set(unnamed))}: the partitions were deleted, with records that were not read yet"
        )
    missing = sorted(set(found.missing) - {it.topic for it in gone} - {str(it) for it in gone})
    if missing:
        cluster.lose(f"{', '.join(missing)}: it is not in the cluster")
    cluster.given_up = set(found.missing)
    # These logs end before the stream's position. A checkpoint without ids cannot tell why.
    cut = [it for it in latest if it in begun and latest[it] < begun[it]]
    for partition in cut:
        cluster.lose(
            f"{partition}: it was read up to offset {begun[partition]}, and its log now ends at {latest[partition]};"
            " was the topic deleted and created again?"
        )
    new = [it for it in latest if it not in begun]
    pinned = cluster.earliest([*new, *cut])
    for partition in new:
        if pinned[partition] > 0:
            cluster.lose(
                f"{partition}: the records of the new partition before offset {pinned[partition]} were deleted"
            )
    starts = {it: pinned[it] if it in pinned else begun[it] for it in latest}
    return Progress(starts, {it: max(starts[it], end) for it, end in latest.items()}, pinned)
