"""The committed offsets of one shard: how they are stored, committed, fetched, deleted and expired. A pure module.

A group commits one offset for each partition that it reads: the offset of the next record that it wants. The offsets
are in nested dictionaries, because a request names a group, its topics, and their partitions:

    group ──▶ topic ──▶ partition ──▶ offset, leader epoch, metadata, time of the commit, …

A coordinator may have a million offsets, and Python's garbage collector stops the whole node while it visits the
objects that it tracks. It tracks neither bytes nor a dictionary of numbers and bytes. So an offset is packed into
bytes, and unpacked when a request needs it.

`ClassicGroup` and `ConsumerGroup` check whether a member may commit. This module does the part that is the same for
every kind of group.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from struct import Struct as Layout
from sys import intern
from typing import NamedTuple

from minibroker.groups.keys import GroupSettings
from minibroker.groups.pending import Place
from minibroker.groups.records import GroupRecord, OffsetCommitKey, OffsetCommitValue
from minibroker.groups.tables.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from minibroker.groups.tables.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from minibroker.log.batch import NO_TIMESTAMP
from minibroker.metadata.image import Image, TopicImage
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.offset_fetch import (
    NO_COMMITTED_OFFSET,
    OffsetFetchRequestTopic,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from minibroker.wire.uuids import NO_UUID

COMMIT_TOPIC_IDS_FROM = 10
FETCH_TOPIC_IDS_FROM = 10
NO_RETENTION_TIME = -1

_Partitions = dict[int, bytes]
_FIXED = Layout(">qiqq16sq")  # all fields of `Committed` but the metadata, which follow
_TIMESTAMP_MAX = 2**63 - 1


class Committed(NamedTuple):
    """The committed offset of one partition."""

    offset: int
    leader_epoch: int
    commit_timestamp: int
    expire_timestamp: int
    """When the offset expires. Only a commit of an old version can set this time; otherwise it is -1."""
    topic_id: bytes
    record_offset: int
    """The offset, in `__consumer_offsets`, of the commit's record. A transaction replaces only older commits."""
    metadata: str

    @classmethod
    def unpacked(cls, stored: bytes) -> "Committed":
        """The fields of a stored offset."""
        return cls._make((*_FIXED.unpack_from(stored), stored[_FIXED.size :].decode()))


def packed(value: OffsetCommitValue, record_offset: int) -> bytes:
    """The offset of a record, as it is stored."""
    fixed = _FIXED.pack(
        value.offset,
        value.leader_epoch,
        value.commit_timestamp,
        value.expire_timestamp,
        value.topic_id,
        record_offset,
    )
    return fixed + value.metadata.encode() if value.metadata else fixed


Pending = Callable[[str, str, int], bool]
"""Whether an open transaction has an offset for this group, topic and partition."""


def _none_is_pending(_group_id: str, _topic: str, _partition: int) -> bool:
    return False


class CommittedOffsets:
    """The committed offsets of the groups of one shard."""

    def __init__(self, is_pending: Pending = _none_is_pending) -> None:
        self._groups: dict[str, dict[str, _Partitions]] = {}
        self._is_pending = is_pending

    # Reading ----------------------------------------------------------------------------------------------------------

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def __len__(self) -> int:
        return sum(len(partitions) for topics in self._groups.values() for partitions in topics.values())

    def group_ids(self) -> list[str]:
        """The groups that have committed offsets."""
        return list(self._groups)

    def count(self, group_id: str) -> int:
        """How many offsets a group has committed."""
        return sum(len(partitions) for partitions in self._groups.get(group_id, {}).values())

    def get(self, group_id: str, topic: str, partition: int) -> Committed | None:
        """The committed offset of one partition."""
        found = self._topics(group_id).get(topic, {}).get(partition)
        return None if found is None else Committed.unpacked(found)

    def _topics(self, group_id: str) -> Mapping[str, _Partitions]:
        return self._groups.get(group_id, {})

    # Applying records -------------------------------------------------------------------------------------------------

    def apply(self, key: OffsetCommitKey, value: OffsetCommitValue | None, record_offset: int) -> None:
        """Store an offset, or remove it if its record is a tombstone."""
        if value is None:
            self._remove(key.group_id, key.topic, key.partition)
        else:
            self._put(key.group_id, key.topic, key.partition, packed(value, record_offset))

    def _put(self, group_id: str, topic: str, partition: int, stored: bytes) -> None:
        topics = self._groups.get(group_id)
        if topics is None:
            topics = self._groups[group_id] = {}
        partitions = topics.get(topic)
        if partitions is None:
            # All groups share one string object for the name of a topic.
            partitions = topics[intern(topic)] = {}
        partitions[partition] = stored

    def apply_pending(self, place: Place, stored: bytes) -> None:
        """Store an offset whose transaction has committed, unless a later record has committed another one."""
        known = self.get(*place)
        if known is None or known.record_offset < Committed.unpacked(stored).record_offset:
            self._put(*place, stored)

    def _remove(self, group_id: str, topic: str, partition: int) -> None:
        topics = self._groups.get(group_id)
        partitions = None if topics is None else topics.get(topic)
        if topics is None or partitions is None:
            return
        partitions.pop(partition, None)
        if not partitions:
            del topics[topic]
        if not topics:
            del self._groups[group_id]

    # Committing -------------------------------------------------------------------------------------------------------

    def commit(
        self, request: OffsetCommitRequest, version: int, image: Image, settings: GroupSettings, now_ms: int
    ) -> tuple[list[GroupRecord], OffsetCommitResponse]:
        """The records of a commit whose sender is already checked, and its answer, with a code for each partition."""
        commit = _Commit(request, version, image, settings.offset_metadata_bytes_max, now_ms)
        response = OffsetCommitResponse(topics=[commit.topic(topic) for topic in request.topics])
        return commit.records, response

    # Fetching ---------------------------------------------------------------------------------------------------------

    def fetch(
        self,
        group_id: str,
        topics: Sequence[OffsetFetchRequestTopic] | None,
        version: int,
        image: Image,
        *,
        require_stable: bool,
    ) -> list[OffsetFetchResponseTopic]:
        """The committed offsets of these topics, or of all topics if there is no list."""
        has_ids = version >= FETCH_TOPIC_IDS_FROM
        asked = self._all_topics(group_id, image, has_ids=has_ids) if topics is None else topics
        answered = []
        for it in asked:
            name = image.topic_names.get(it.topic_id) if has_ids else it.name
            topic_id = it.topic_id if has_ids else NO_UUID
            partitions = [
                _no_offset(index, ErrorCode.UNKNOWN_TOPIC_ID)
                if name is None
                else self._fetched(group_id, name, index, topic_id, require_stable)
                for index in it.partition_indexes
            ]
            answered.append(OffsetFetchResponseTopic(name=name or "", topic_id=it.topic_id, partitions=partitions))
        return answered

    def _all_topics(self, group_id: str, image: Image, *, has_ids: bool) -> list[OffsetFetchRequestTopic]:
        """A request for all topics for which the group has offsets. With topic ids, deleted topics are left out."""
        return [
            OffsetFetchRequestTopic(name=name, topic_id=_id_of(image, name), partition_indexes=list(found))
            for name, found in self._topics(group_id).items()
            if name in image.topics or not has_ids
        ]

    def _fetched(
        self, group_id: str, topic: str, index: int, topic_id: bytes, require_stable: bool
    ) -> OffsetFetchResponsePartition:
        if require_stable and self._is_pending(group_id, topic, index):
            return _no_offset(index, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        found = self.get(group_id, topic, index)
        # An offset of a deleted topic must not be used for a new topic with the same name.
        if found is None or (topic_id != NO_UUID and found.topic_id not in (NO_UUID, topic_id)):
            return _no_offset(index, ErrorCode.NONE)
        return OffsetFetchResponsePartition(
            partition_index=index,
            committed_offset=found.offset,
            committed_leader_epoch=found.leader_epoch,
            metadata=found.metadata,
            error_code=ErrorCode.NONE,
        )

    # Deleting ---------------------------------------------------------------------------------------------------------

    def delete(
        self, request: OffsetDeleteRequest, is_subscribed: Callable[[str], bool]
    ) -> tuple[list[GroupRecord], OffsetDeleteResponse]:
        """The tombstones for the offsets of a request, and its answer. Topics with subscribers are refused."""
        records: list[GroupRecord] = []
        topics = []
        for topic in request.topics:
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_subscribed(topic.name) else ErrorCode.NONE
            indexes = [it.partition_index for it in topic.partitions]
            if code is ErrorCode.NONE:
                records += self._tombstones(request.group_id, topic.name, indexes)
            partitions = [OffsetDeleteResponsePartition(partition_index=it, error_code=code) for it in indexes]
            topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
        return records, OffsetDeleteResponse(topics=topics)

    def _tombstones(self, group_id: str, topic: str, indexes: Iterable[int]) -> Iterator[GroupRecord]:
        known = self._topics(group_id).get(topic, {})
        for index in dict.fromkeys(indexes):
            if index in known or self._is_pending(group_id, topic, index):
                yield _tombstone(group_id, topic, index)

    def tombstones_of_group(self, group_id: str) -> list[GroupRecord]:
        """The records that delete all offsets of a group."""
        return [
            _tombstone(group_id, topic, index)
            for topic, partitions in self._topics(group_id).items()
            for index in partitions
        ]

    def tombstones_of_topic(self, topic: str, topic_id: bytes) -> list[GroupRecord]:
        """The records that delete the offsets of a deleted topic, in all groups.

        The offsets of a new topic with the same name are kept.
        """
        return [
            _tombstone(group_id, topic, index)
            for group_id, topics in self._groups.items()
            for index, stored in topics.get(topic, {}).items()
            if Committed.unpacked(stored).topic_id in (NO_UUID, topic_id)
        ]

    # Expiring ---------------------------------------------------------------------------------------------------------

    def tombstones_of_expired(
        self,
        group_id: str,
        *,
        is_subscribed: Callable[[str], bool],
        empty_since_ms: int,
        retention_ms: int,
        now_ms: int,
    ) -> list[GroupRecord]:
        """The records that delete the expired offsets of a group.

        An offset expires `retention_ms` after `empty_since_ms` or, if that is -1, after its commit. It is kept if a
        member subscribes to its topic, or if an open transaction has an offset for its partition.
        """
        return [
            _tombstone(group_id, topic, index)
            for topic, partitions in self._topics(group_id).items()
            if not is_subscribed(topic)
            for index, stored in partitions.items()
            if _is_expired(Committed.unpacked(stored), empty_since_ms, retention_ms, now_ms)
            and not self._is_pending(group_id, topic, index)
        ]


def _is_expired(it: Committed, empty_since_ms: int, retention_ms: int, now_ms: int) -> bool:
    if it.expire_timestamp != NO_TIMESTAMP:
        return now_ms >= it.expire_timestamp
    since_ms = it.commit_timestamp if empty_since_ms == NO_TIMESTAMP else empty_since_ms
    return now_ms - since_ms >= retention_ms


# One commit -----------------------------------------------------------------------------------------------------------


class _Commit:
    """Turns one OffsetCommit request into records and an answer."""

    def __init__(
        self, request: OffsetCommitRequest, version: int, image: Image, metadata_max: int, now_ms: int
    ) -> None:
        self._group_id = request.group_id
        self._has_ids = version >= COMMIT_TOPIC_IDS_FROM
        self._image = image
        self._metadata_max = metadata_max
        self._now_ms = now_ms
        has_retention = request.retention_time_ms != NO_RETENTION_TIME
        expires_ms = min(now_ms + request.retention_time_ms, _TIMESTAMP_MAX)
        self._expire_timestamp = expires_ms if has_retention else NO_TIMESTAMP
        self.records: list[GroupRecord] = []

    def topic(self, asked: OffsetCommitRequestTopic) -> OffsetCommitResponseTopic:
        """Add the records of one topic, and return the answer for the topic."""
        name = self._image.topic_names.get(asked.topic_id) if self._has_ids else asked.name
        topic = None if name is None else self._image.topics.get(name)
        missing = ErrorCode.UNKNOWN_TOPIC_ID if self._has_ids else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return OffsetCommitResponseTopic(
            name=asked.name,
            topic_id=asked.topic_id,
            partitions=[
                OffsetCommitResponsePartition(
                    partition_index=it.partition_index,
                    error_code=missing if topic is None else self._partition(topic, it),
                )
                for it in asked.partitions
            ],
        )

    def _partition(self, topic: TopicImage, asked: OffsetCommitRequestPartition) -> ErrorCode:
        metadata = asked.committed_metadata or ""
        if asked.partition_index not in topic.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if len(metadata) > self._metadata_max:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        # -1 means that there is no offset. Other negative numbers are invalid.
        if asked.committed_offset < NO_COMMITTED_OFFSET:
            return ErrorCode.INVALID_REQUEST
        value = OffsetCommitValue(
            offset=asked.committed_offset,
            leader_epoch=asked.committed_leader_epoch,
            metadata=metadata,
            commit_timestamp=self._now_ms,
            expire_timestamp=self._expire_timestamp,
            topic_id=topic.topic_id,
        )
        key = OffsetCommitKey(group_id=self._group_id, topic=topic.name, partition=asked.partition_index)
        self.records.append(GroupRecord(key, value))
        return ErrorCode.NONE


def refused_commit(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    """The response to a refused commit. Every partition has the error, because there is no common field for it."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=it.partition_index, error_code=code)
                    for it in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def refused_topics(topics: Sequence[OffsetFetchRequestTopic] | None, code: ErrorCode) -> list[OffsetFetchResponseTopic]:
    """The topics of a refused fetch. Every partition has the error, because version 1 has no common field for it."""
    return [
        OffsetFetchResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[_no_offset(index, code) for index in topic.partition_indexes],
        )
        for topic in topics or ()
    ]


def _no_offset(index: int, code: ErrorCode) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=index, committed_offset=NO_COMMITTED_OFFSET, metadata="", error_code=code
    )


def _id_of(image: Image, topic: str) -> bytes:
    found = image.topics.get(topic)
    return NO_UUID if found is None else found.topic_id


def tombstones(places: Iterable[Place]) -> list[GroupRecord]:
    """The records that delete these offsets."""
    return [_tombstone(*place) for place in places]


def _tombstone(group_id: str, topic: str, partition: int) -> GroupRecord:
    return GroupRecord(OffsetCommitKey(group_id=group_id, topic=topic, partition=partition), None)
