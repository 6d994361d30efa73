"""DeleteRecords: delete the records before an offset. A pure module."""

from collections.abc import Callable

from minibroker.partitions.errors import Refused
from minibroker.partitions.partition import Partition
from minibroker.partitions.registry import Answer, Call
from minibroker.partitions.routes import Routes
from minibroker.partitions.waiting import Wait
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response
from minibroker.wire.tables.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)


class DeleteRecords:
    """The handler of DeleteRecords: it moves the start of the log forward."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    def __call__(self, call: Call[DeleteRecordsRequest]) -> Answer:
        """Answer once every in-sync replica has deleted the records, so that no new leader can bring them back."""
        deletions = _Deletions(self._routes, call.request)
        return deletions.attempt() or Wait(
            keys=deletions.names,
            timeout_ms=max(call.request.timeout_ms, 0),
            attempt=deletions.attempt,
            expire=deletions.response,
        )


class _Deletions:
    """One request, which may have to wait for other replicas."""

    def __init__(self, routes: Routes, request: DeleteRecordsRequest) -> None:
        self._topics = [
            (
                topic.name,
                [
                    _Deletion(routes, TopicPartition(topic.name, it.partition_index), it.offset)
                    for it in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        self._all = [it for _name, found in self._topics for it in found]
        self.names = [it.name for it in self._all]

    def attempt(self) -> Response | None:
        """The answer, or None if it must wait longer."""
        are_done = [it.is_done() for it in self._all]
        return self.response() if all(are_done) else None

    def response(self) -> Response:
        """The answer with the results so far, and the low watermark of every partition."""
        topics = [
            DeleteRecordsTopicResult(name=name, partitions=[it.result for it in found]) for name, found in self._topics
        ]
        return DeleteRecordsResponse(topics=topics, throttle_time_ms=0)


class _Deletion:
    """The deletion in one partition, and its result so far."""

    def __init__(self, routes: Routes, name: TopicPartition, offset: int) -> None:
        self.name = name
        self._routes = routes
        # If the request times out, this is the result.
        self.result = DeleteRecordsPartitionResult(
            partition_index=name.partition, low_watermark=-1, error_code=ErrorCode.REQUEST_TIMED_OUT
        )
        self._wanted = self._ask(lambda partition: partition.delete_records(offset))

    def is_done(self) -> bool:
        """Whether the result is final: no in-sync replica has the records any more, or the deletion was refused."""
        if self.result.error_code is ErrorCode.REQUEST_TIMED_OUT:
            self.result.low_watermark = self._ask(lambda partition: partition.low_watermark)
            if self.result.low_watermark >= self._wanted >= 0:
                self.result.error_code = ErrorCode.NONE
        return self.result.error_code is not ErrorCode.REQUEST_TIMED_OUT

    def _ask(self, ask: Callable[[Partition], int]) -> int:
        try:
            partition = self._routes.partition(*self.name)
            partition.check_leader()
            return ask(partition)
        except Refused as refused:
            self.result.error_code = refused.code
            return -1
