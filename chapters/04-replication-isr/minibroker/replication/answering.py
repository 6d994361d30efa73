"""The handlers of the replication requests. A pure module.

The leader of a partition answers OffsetForLeaderEpoch, and every replica answers DescribeProducers. The other requests
go to the controller: AlterPartition, BrokerRegistration and AllocateProducerIds come from brokers, ElectLeaders from an
operator.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from minibroker.metadata.authority import Authority
from minibroker.metadata.broker_commands import AllocateProducerIds, Registration
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.decision import Command
from minibroker.metadata.image import Endpoint
from minibroker.partitions.errors import Refused
from minibroker.partitions.partition import LocalPartition
from minibroker.partitions.producers import ProducerState as KnownProducer
from minibroker.partitions.registry import Answer, Call, propose
from minibroker.replication.authority import (
    AlteredPartition,
    AlterPartitions,
    Elected,
    Election,
    ElectLeaders,
    IsrChange,
    LogEnd,
    RegisterReplicas,
)
from minibroker.replication.replica import Replica
from minibroker.replication.tables.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from minibroker.replication.tables.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionAlteration,
    PartitionAltered,
    TopicAltered,
)
from minibroker.replication.tables.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from minibroker.replication.tables.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from minibroker.replication.tables.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from minibroker.replication.tables.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response

DECISION_MS_MAX = 30_000

R = TypeVar("R")

LogEnds = Mapping[TopicPartition, Mapping[int, LogEnd]]
"""Where the logs of partitions end, by node."""


class Partitions(Protocol):
    """The partitions of this node. A partition without a replica here raises `Refused`."""

    def partition(self, topic: str, index: int) -> LocalPartition:
        """The partition, if this node has a replica of it."""


# Requests to a replica ------------------------------------------------------------------------------------------------


class OffsetForLeaderEpoch:
    """The handler of OffsetForLeaderEpoch: where an epoch ends, so that a reader notices a truncation (KIP-320)."""

    def __init__(self, partitions: Partitions, replica_of: Callable[[TopicPartition], Replica | None]) -> None:
        self._partitions = partitions
        self._replica_of = replica_of

    def __call__(self, call: Call[OffsetForLeaderEpochRequest]) -> Answer:
        """Answer for each partition separately."""
        topics = [
            OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[self._answer(topic.topic, wanted) for wanted in topic.partitions]
            )
            for topic in call.request.topics
        ]
        return OffsetForLeaderEpochResponse(topics=topics)

    def _answer(self, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
        try:
            partition = self._partitions.partition(topic, wanted.partition)
            partition.check_leader(wanted.current_leader_epoch)
        except Refused as refused:
            return EpochEndOffset(error_code=refused.code, partition=wanted.partition)
        replica = self._replica_of(partition.name)
        assert replica is not None, "a partition that this node leads has a replica here"
        end = replica.end_of_epoch(wanted.leader_epoch)
        return EpochEndOffset(
            error_code=ErrorCode.NONE, partition=wanted.partition, leader_epoch=end.epoch, end_offset=end.end_offset
        )


class DescribeProducers:
    """The handler of DescribeProducers: what a replica remembers of its idempotent producers (KIP-664).

    Followers answer, too: an operator who looks for a hanging transaction compares the replicas.
    """

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    def __call__(self, call: Call[DescribeProducersRequest]) -> Answer:
        """Answer for each partition separately."""
        topics = [
            TopicResponse(name=topic.name, partitions=[self._answer(topic.name, it) for it in topic.partition_indexes])
            for topic in call.request.topics
        ]
        return DescribeProducersResponse(topics=topics)

    def _answer(self, topic: str, index: int) -> PartitionResponse:
        try:
            partition = self._partitions.partition(topic, index)
            if partition.log.failure is not None:
                message = f"{partition.name.directory} is offline: {partition.log.failure}"
                raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, message)
        except Refused as refused:
            return PartitionResponse(
                partition_index=index, error_code=refused.code, error_message=refused.message, active_producers=[]
            )
        known = [_producer(*it) for it in partition.producers.producers.items()]
        return PartitionResponse(partition_index=index, error_code=ErrorCode.NONE, active_producers=known)


def _producer(producer_id: int, state: KnownProducer) -> ProducerState:
    return ProducerState(
        producer_id=producer_id,
        producer_epoch=state.epoch,
        last_sequence=state.last_sequence,
        last_timestamp=state.timestamp,
        coordinator_epoch=state.coordinator_epoch,
        current_txn_start_offset=state.current_txn_first_offset,
    )


# Requests to the controller -------------------------------------------------------------------------------------------


class Decisions:
    """The handlers of requests that only the controller can decide. `live` returns the nodes that are alive.

    `alter` and `elect` make the commands; chapter 05 passes the commands of its own controller.
    """

    def __init__(
        self,
        authority: Authority,
        node: NodeConfig,
        *,
        live: Callable[[], Collection[int]],
        alter: Callable[[int, int, Sequence[IsrChange]], Command[list[AlteredPartition]]] = AlterPartitions,
        elect: Callable[[Sequence[TopicPartition], Collection[int], NodeConfig, Election], ElectLeaders] = ElectLeaders,
    ) -> None:
        self._authority = authority
        self._node = node
        self._live = live
        self._alter = alter
        self._elect = elect

    def alter_partition(self, call: Call[AlterPartitionRequest]) -> Answer:
        """The handler of AlterPartition: a leader proposes other in-sync sets."""
        request = call.request
        changes = [
            IsrChange(topic.topic_id, it.partition_index, it.leader_epoch, it.partition_epoch, _members(it))
            for topic in request.topics
            for it in topic.partitions
        ]
        command = self._alter(request.broker_id, request.broker_epoch, changes)
        return propose(
            self._authority,
            command,
            _altered,
            timeout_ms=DECISION_MS_MAX,
            expire=lambda: AlterPartitionResponse(error_code=ErrorCode.REQUEST_TIMED_OUT),
        )

    def register(self, call: Call[BrokerRegistrationRequest]) -> Answer:
        """The handler of BrokerRegistration: a broker has started."""
        return answer_registration(self._authority, call.request, RegisterReplicas(**described(call.request)))

    def allocate_producer_ids(self, call: Call[AllocateProducerIdsRequest]) -> Answer:
        """The handler of AllocateProducerIds: a broker needs a block of producer ids."""
        command = AllocateProducerIds(call.request.broker_id, call.request.broker_epoch)
        return propose(
            self._authority,
            command,
            lambda it: AllocateProducerIdsResponse(
                error_code=it.code, producer_id_start=it.first, producer_id_len=it.count
            ),
            timeout_ms=DECISION_MS_MAX,
            expire=lambda: AllocateProducerIdsResponse(error_code=ErrorCode.REQUEST_TIMED_OUT),
        )

    def elect_leaders(self, call: Call[ElectLeadersRequest], ends: LogEnds | None = None) -> Answer:
        """The handler of ElectLeaders: an operator requests elections. `ends` says where logs end, if it is known."""
        request = call.request
        try:
            kind = Election(request.election_type)
        except ValueError:
            return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST, replica_election_results=[])
        command = replace(self._elect(self.named(request), self._live(), self._node, kind), ends=ends or {})
        is_all = request.topic_partitions is None
        return decided(
            self._authority,
            command,
            lambda elected: _elected(elected, is_all=is_all),
            timeout_ms=request.timeout_ms,
        )

    def named(self, request: ElectLeadersRequest) -> list[TopicPartition]:
        """The partitions that a request names; all of them if it names none."""
        if request.topic_partitions is None:
            topics = self._authority.image.topics.values()
            return [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]
        return [
            TopicPartition(topic.topic, number) for topic in request.topic_partitions for number in topic.partitions
        ]


def described(request: BrokerRegistrationRequest) -> dict[str, Any]:
    """The fields of a `BrokerDescription`, from a broker's request."""
    return {
        "broker_id": request.broker_id,
        "endpoints": [Endpoint(it.name, it.host, it.port, it.security_protocol) for it in request.listeners],
        "incarnation_id": bytes(request.incarnation_id),
        "rack": request.rack,
        "previous_broker_epoch": request.previous_broker_epoch,
        "log_dirs": [bytes(it) for it in request.log_dirs],
    }


def answer_registration(
    authority: Authority,
    request: BrokerRegistrationRequest,
    command: Command[Registration],
    on_done: Callable[[Registration], None] | None = None,
) -> Answer:
    """Answer BrokerRegistration with the result of a command. A broker of another cluster is refused."""
    if request.cluster_id != authority.image.cluster_id:
        return BrokerRegistrationResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)

    def respond(registration: Registration) -> Response:
        if on_done is not None:
            on_done(registration)
        return BrokerRegistrationResponse(error_code=registration.code, broker_epoch=registration.epoch)

    return decided(authority, command, respond)


def decided(
    authority: Authority, command: Command[R], respond: Callable[[R], Response], *, timeout_ms: int = DECISION_MS_MAX
) -> Answer:
    """Answer with the result of a command. After a timeout, refuse the command with REQUEST_TIMED_OUT."""
    timeout_ms = max(timeout_ms, 0)
    too_late = f"the controller did not decide within {timeout_ms} ms"
    return propose(
        authority,
        command,
        respond,
        timeout_ms=timeout_ms,
        expire=lambda: respond(command.refuse(ErrorCode.REQUEST_TIMED_OUT, too_late)),
    )


def _members(partition: PartitionAlteration) -> list[tuple[int, int]]:
    # Before version 3 a leader did not name the broker epoch of each member.
    with_epochs = [(it.broker_id, it.broker_epoch) for it in partition.new_isr_with_epochs]
    return with_epochs or [(node_id, -1) for node_id in partition.new_isr]


def _altered(partitions: list[AlteredPartition]) -> Response:
    # If the broker epoch is stale, the whole request is refused.
    if partitions and all(it.code is ErrorCode.STALE_BROKER_EPOCH for it in partitions):
        return AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    topics: dict[bytes, list[PartitionAltered]] = {}
    for it in partitions:
        topics.setdefault(it.topic_id, []).append(
            PartitionAltered(
                partition_index=it.partition,
                error_code=it.code,
                leader_id=it.leader,
                leader_epoch=it.leader_epoch,
                isr=list(it.isr),
                partition_epoch=it.partition_epoch,
            )
        )
    return AlterPartitionResponse(
        topics=[TopicAltered(topic_id=topic_id, partitions=found) for topic_id, found in topics.items()]
    )


def _elected(partitions: Iterable[Elected], *, is_all: bool) -> Response:
    topics: dict[str, list[PartitionResult]] = {}
    for it in partitions:
        # A request for all partitions lists only the partitions that needed an election.
        if not (is_all and it.code is ErrorCode.ELECTION_NOT_NEEDED):
            result = PartitionResult(partition_id=it.name.partition, error_code=it.code, error_message=it.message)
            topics.setdefault(it.name.topic, []).append(result)
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(topic=topic, partition_result=found) for topic, found in topics.items()
        ]
    )
