"""A fetch session: the partitions of a client, and what the client was told of each (KIP-227). A pure module.

    full fetch, epoch 0            names all partitions          ──▶ all of them, and the id of a new session
    incremental, epoch 1, 2, …     names the changed positions,  ──▶ the partitions that have news
                                   and partitions to forget
    epoch -1                       ends the session, or uses none

A partition has news if it has records, an error, or offsets that differ from those that the client was told. Kafka
looks at all partitions of a session to find them. Here a session watches its partitions, and one that may have news is
*due*. A partition is due from the moment at which its reader moves or its log changes, until a read reaches the end of
the log and finds no news. So the cost of a fetch depends on the partitions that are due, not on those that are idle.

A follower's fetch must reach every partition, because it tells the leader how far the follower has come. So the
partitions of a follower's session are not watched, and all are read.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from minibroker.partitions.fetch import READ_COMMITTED, record_bytes
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)

_UNKNOWN = -1
_EPOCH_MAX = 2**31 - 1

Key = tuple[str, bytes, int]
"""A partition in a request: the name or the id of its topic, and its number."""


def next_epoch(epoch: int) -> int:
    """The epoch of the next request. After the last one comes 1, because 0 would begin a new session."""
    return 1 if epoch == _EPOCH_MAX else epoch + 1


class CachedPartition:
    """One partition of a session: what its reader wants, and what the reader was told."""

    __slots__ = ("_session", "high_watermark", "key", "log_start_offset", "name", "wanted")

    def __init__(self, session: "FetchSession", key: Key, wanted: FetchPartition) -> None:
        self._session = session
        self.key = key
        self.wanted = wanted
        self.name: TopicPartition | None = None
        """The name under which the partition is watched, or None."""
        self.high_watermark = _UNKNOWN
        self.log_start_offset = _UNKNOWN

    def on_changed(self) -> None:
        """The log has changed, so there may be news."""
        self._session.on_changed(self)

    def is_news(self, data: PartitionData) -> bool:
        """Whether the reader must be told of what was read."""
        # News are records, an error, a log that diverges, and an offset that differs from the one the reader was told.
        return (
            record_bytes(data) > 0
            or data.error_code != ErrorCode.NONE
            or data.high_watermark != self.high_watermark
            or data.log_start_offset != self.log_start_offset
            or data.diverging_epoch.epoch >= 0
        )

    def is_at_end(self, data: PartitionData, *, is_committed_only: bool) -> bool:
        """Whether the reader has read everything. Otherwise there was no room for its records in the answer."""
        end = data.last_stable_offset if is_committed_only else data.high_watermark
        return self.wanted.fetch_offset >= end

    def on_told(self, data: PartitionData) -> None:
        """The reader is told of what was read. After an error, it is told again when the error is over."""
        is_error = data.error_code != ErrorCode.NONE
        self.high_watermark = _UNKNOWN if is_error else data.high_watermark
        self.log_start_offset = data.log_start_offset


class FetchSession:
    """The partitions of one session, those that were served longest ago first."""

    def __init__(
        self,
        session_id: int,
        *,
        is_privileged: bool,
        uses_topic_ids: bool,
        now_ms: int,
        wake: Callable[["FetchSession"], None] = lambda _session: None,
    ) -> None:
        """`wake` is called when a log has changed. A follower's session is privileged."""
        self.id = session_id
        self.is_privileged = is_privileged
        self.uses_topic_ids = uses_topic_ids
        self.created_ms = self.used_ms = now_ms
        self.epoch = 1
        self.is_closed = False
        self._is_committed_only = False
        self._wake = wake
        self._partitions: dict[Key, CachedPartition] = {}
        self._due: dict[CachedPartition, None] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[CachedPartition]:
        return iter(self._partitions.values())

    # What the client wants ------------------------------------------------------------------------------------------

    def update(self, request: FetchRequest) -> list[CachedPartition]:
        """Apply a request. Return the partitions that were forgotten."""
        is_committed_only = request.isolation_level == READ_COMMITTED
        if is_committed_only != self._is_committed_only:
            # The client now reads up to another offset in each partition, so every partition may have news.
            self._is_committed_only = is_committed_only
            self._due |= dict.fromkeys(self)
        for topic in request.topics:
            for wanted in topic.partitions:
                self._want((topic.topic, topic.topic_id, wanted.partition), wanted)
        forgotten = request.forgotten_topics_data
        keys = [(it.topic, it.topic_id, index) for it in forgotten for index in it.partitions]
        gone = [self._partitions.pop(key) for key in dict.fromkeys(keys) if key in self._partitions]
        for it in gone:
            self._due.pop(it, None)
        return gone

    def _want(self, key: Key, wanted: FetchPartition) -> None:
        known = self._partitions.get(key)
        if known is None:
            known = self._partitions[key] = CachedPartition(self, key, wanted)
        known.wanted = wanted
        self._due[known] = None

    def on_changed(self, partition: CachedPartition) -> None:
        """The log of a partition has changed."""
        self._due[partition] = None
        self._wake(self)

    # What the client is told ----------------------------------------------------------------------------------------

    def due(self, count_max: int) -> list[CachedPartition]:
        """The partitions that may have news, those that became due first."""
        return list(islice(self._due, count_max))

    @property
    def due_count(self) -> int:
        """How many partitions may have news."""
        return len(self._due)

    def news(self, responses: Sequence[FetchableTopicResponse]) -> list[FetchableTopicResponse]:
        """What the client must be told of the partitions that were read. Partitions read to the end are not due."""
        found = []
        for topic in responses:
            news = [it for it in topic.partitions if self._is_news(topic, it)]
            if news:
                found.append(FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=news))
        return found

    def _is_news(self, topic: FetchableTopicResponse, data: PartitionData) -> bool:
        known = self._known(topic, data)
        if known is None:
            return False
        if known.is_news(data):
            return True
        # A partition that was read to its end, without news, is read again only after a change.
        if known.is_at_end(data, is_committed_only=self._is_committed_only):
            self._due.pop(known, None)
        return False

    def on_told(self, responses: Sequence[FetchableTopicResponse]) -> None:
        """The client is told of this news. Its partitions go to the end of the queue, so that all have their turn."""
        for topic in responses:
            for data in topic.partitions:
                known = self._known(topic, data)
                if known is not None:
                    known.on_told(data)
                    self._pass_turn(known, has_records=record_bytes(data) > 0)

    def _pass_turn(self, partition: CachedPartition, *, has_records: bool) -> None:
        if has_records:
            self._partitions[partition.key] = self._partitions.pop(partition.key)
        # The partition stays due, even without records: a later read finds out that there is no more news.
        self._due.pop(partition, None)
        self._due[partition] = None

    def _known(self, topic: FetchableTopicResponse, data: PartitionData) -> CachedPartition | None:
        # A topic that is wanted by its id has its name in the response, too. The key has only one of the two.
        name = "" if self.uses_topic_ids else topic.topic
        return self._partitions.get((name, bytes(topic.topic_id), data.partition_index))


def topics_of(partitions: Iterable[CachedPartition]) -> list[FetchTopic]:
    """The partitions, as a request names them. Consecutive partitions of one topic share an entry."""
    topics: list[FetchTopic] = []
    for it in partitions:
        name, topic_id, _index = it.key
        if not topics or (topics[-1].topic, topics[-1].topic_id) != (name, topic_id):
            topics.append(FetchTopic(topic=name, topic_id=topic_id, partitions=[]))
        topics[-1].partitions.append(it.wanted)
    return topics
