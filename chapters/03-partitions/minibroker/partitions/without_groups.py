"""FindCoordinator and OffsetFetch as a broker without consumer groups answers them. A pure module.

Groups and transactions come in chapter 06, which replaces both handlers. librdkafka needs both in every broker:

- It assumes that a broker without FindCoordinator has no lz4. A producer that was told to use lz4 then silently sends
  its records uncompressed.
- A consumer that is assigned a partition without an offset asks its coordinator for the committed one. If
  FindCoordinator is announced and OffsetFetch is not, librdkafka 2.16 dereferences a null pointer and the process dies.
"""

from collections.abc import Callable, Sequence

from minibroker.metadata.image import Image
from minibroker.partitions.registry import Answer, Call
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from minibroker.wire.tables.offset_fetch import (
    NO_COMMITTED_OFFSET,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)

_KEY_TYPES = (0, 1)  # groups, transactional ids
_MANY_KEYS_FROM = 4
_MANY_GROUPS_FROM = 8
_TOPIC_IDS_FROM = 10


class WithoutGroups:
    """Names one broker as the coordinator of every key, and knows no committed offset."""

    def __init__(self, image: Callable[[], Image]) -> None:
        self._image = image

    # FindCoordinator --------------------------------------------------------------------------------------------------

    def find_coordinator(self, call: Call[FindCoordinatorRequest]) -> Answer:
        """The handler of FindCoordinator."""
        request = call.request
        keys = [request.key] if call.version < _MANY_KEYS_FROM else request.coordinator_keys
        found = [self._coordinator(key, request.key_type, call.session.listener) for key in keys]
        if call.version >= _MANY_KEYS_FROM:
            return FindCoordinatorResponse(coordinators=found)
        (only,) = found
        return FindCoordinatorResponse(
            error_code=only.error_code,
            error_message=only.error_message,
            node_id=only.node_id,
            host=only.host,
            port=only.port,
        )

    def _coordinator(self, key: str, key_type: int, listener: str) -> Coordinator:
        """The first live broker that has the client's listener."""
        if key_type not in _KEY_TYPES:
            message = f"keys of type {key_type} have no coordinator: type 0 is a group, type 1 a transactional id"
            return _no_coordinator(key, ErrorCode.INVALID_REQUEST, message)
        image = self._image()
        found = ((it, image.brokers[it].endpoint(listener)) for it in image.live_brokers())
        node_id, endpoint = next(((it, one) for it, one in found if one is not None), (-1, None))
        if endpoint is None:
            message = f"no broker of this cluster is alive and has a listener {listener}"
            return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
        return Coordinator(
            key=key,
            node_id=node_id,
            host=endpoint.host,
            port=endpoint.port,
            error_code=ErrorCode.NONE,
            error_message=None,
        )

    # OffsetFetch ------------------------------------------------------------------------------------------------------

    def offset_fetch(self, call: Call[OffsetFetchRequest]) -> Answer:
        """The handler of OffsetFetch: no group has committed an offset, so each partition gets -1."""
        request, version = call.request, call.version
        if version < _MANY_GROUPS_FROM:
            return OffsetFetchResponse(topics=self._nothing_committed(request.topics, version))
        return OffsetFetchResponse(
            groups=[
                OffsetFetchResponseGroup(group_id=group.group_id, topics=self._nothing_committed(group.topics, version))
                for group in request.groups
            ]
        )

    def _nothing_committed(
        self, topics: Sequence[OffsetFetchRequestTopic] | None, version: int
    ) -> list[OffsetFetchResponseTopic]:
        # Null asks for every topic for which the group has committed offsets. There is none.
        names = self._image().topic_names
        return [
            OffsetFetchResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=index,
                        committed_offset=NO_COMMITTED_OFFSET,
                        metadata="",
                        error_code=(
                            ErrorCode.UNKNOWN_TOPIC_ID
                            if version >= _TOPIC_IDS_FROM and topic.topic_id not in names
                            else ErrorCode.NONE
                        ),
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in topics or ()
        ]


def _no_coordinator(key: str, code: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message)
