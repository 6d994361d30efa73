"""Offsets in transactions: TxnOffsetCommit, and the markers in `__consumer_offsets`.

The group coordinator is the only writer of its partition. So it writes the marker of a transaction itself, and moves or
drops the pending offsets in the same step. The request for the marker is answered after that. So the offsets of a
complete transaction can be fetched.

Before the first offset of a transaction is written, the transaction coordinator is asked (KIP-890). A producer with
version 5 or newer does not send AddOffsetsToTxn. The question adds the partition to its transaction.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from minibroker.coordinators.answering import Pass
from minibroker.coordinators.state_topics import StateTopic
from minibroker.coordinators.tickets import Ticket, answer_of
from minibroker.groups.offsets import refused_commit
from minibroker.groups.pending import Producer
from minibroker.groups.shard import GroupShard
from minibroker.groups.steps import EndMarker, Reply, Step
from minibroker.groups.tables.heartbeat import HeartbeatResponse
from minibroker.groups.tables.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker.partitions.errors import Refused
from minibroker.partitions.partition import LocalPartition
from minibroker.partitions.registry import Answer, Call
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.markers import Marker, check_marker, marker_batch
from minibroker.transactions.tables.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from minibroker.transactions.verifying import UNANSWERED, Verifier
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response

_ABORTABLE_FROM = 4
_ADDING_FROM = 5


class TransactionalCommits:
    """The handler of TxnOffsetCommit."""

    def __init__(self, pass_on: Pass, topic: StateTopic, verifier: Verifier) -> None:
        self._pass_on = pass_on
        self._topic = topic
        self._verifier = verifier

    def __call__(self, call: Call[TxnOffsetCommitRequest]) -> Answer:
        """Store offsets as pending."""
        request, version = call.request, call.version
        commit = _as_commit(request)
        ticket = Ticket(lambda code: _converted(refused_commit(commit, code)), _converted)
        if request.group_id:
            event = partial(self._begin, ticket, request, version, commit)
            self._pass_on(request.group_id, ticket, event)
        else:
            ticket.complete(ErrorCode.INVALID_GROUP_ID)
        return answer_of(ticket)

    def _begin(
        self,
        ticket: Ticket,
        request: TxnOffsetCommitRequest,
        version: int,
        commit: OffsetCommitRequest,
        shard: GroupShard,
        now_ms: int,
    ) -> Step:
        """Store the offsets, or ask the transaction coordinator first."""
        who, owner = Producer(request.producer_id, request.producer_epoch), request.transactional_id
        if shard.is_open(who, owner):
            return shard.on_transactional_commit(ticket, commit, who, owner, now_ms)
        name = self._topic.partition_of(request.group_id)
        assert name is not None, "the coordinator leads a partition of the topic"
        is_add = version >= _ADDING_FROM
        guard = shard.verification.guard_of(who, is_add=is_add)

        def done(codes: Mapping[TopicPartition, ErrorCode]) -> None:
            code = _code_for_producer(codes[name], version)

            def act(shard: GroupShard, now_ms: int) -> Step:
                if code is not ErrorCode.NONE or not shard.verification.is_guarded(who.id, guard):
                    # If the guard is gone, the transaction has ended meanwhile. The producer sends the commit again.
                    refused = code if code is not ErrorCode.NONE else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                    return Step(replies=[Reply(ticket, refused)])
                return shard.on_transactional_commit(ticket, commit, who, owner, now_ms)

            self._pass_on(request.group_id, ticket, act)

        self._verifier.verify(owner, who.id, who.epoch, [name], is_add=is_add, done=done)
        return Step()


def _code_for_producer(code: ErrorCode, version: int) -> ErrorCode:
    """The transaction coordinator's code as TxnOffsetCommit answers it."""
    if code in UNANSWERED:
        # With this code the producer tries again, and does not look for another group coordinator.
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_FROM:
        return ErrorCode.INVALID_TXN_STATE
    return code


def _as_commit(request: TxnOffsetCommitRequest) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=it.partition_index,
                        committed_offset=it.committed_offset,
                        committed_leader_epoch=it.committed_leader_epoch,
                        committed_metadata=it.committed_metadata,
                    )
                    for it in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _converted(response: Any) -> Response:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=it.partition_index, error_code=it.error_code)
                    for it in topic.partitions
                ],
            )
            for topic in response.topics
        ]
    )


# Markers --------------------------------------------------------------------------------------------------------------


def marker_ticket(done: Callable[[ErrorCode], None]) -> Ticket:
    """The ticket of a marker. Only the code of its answer counts."""

    def on_done(response: Any) -> None:
        done(ErrorCode(response.error_code))

    return Ticket(lambda code: HeartbeatResponse(error_code=code), on_done=on_done)


def write_marker(partition: LocalPartition, marker: Marker, ticket: Ticket, shard: GroupShard, now_ms: int) -> Step:
    """The step that writes a marker, or refuses it because of its epochs."""
    state = partition.producers.producers.get(marker.producer_id)
    if shard.pending.epoch_of(marker.producer_id) == marker.producer_epoch and marker.transaction_version:
        # This is a late marker of the previous transaction. It must not end the current one, whose offsets are pending,
        # though perhaps not in the log yet.
        return Step(replies=[Reply(ticket, ErrorCode.INVALID_PRODUCER_EPOCH)])
    try:
        if state is not None:
            check_marker(marker, state)
    except Refused as refused:
        return Step(replies=[Reply(ticket, refused.code)])
    batch = marker_batch(marker, timestamp_ms=now_ms)
    return shard.on_marker(
        ticket, EndMarker(Producer(marker.producer_id, marker.producer_epoch), marker.is_commit, batch)
    )
