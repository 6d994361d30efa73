"""Administration: topics, partitions, configurations, offsets, the cluster.

Each function makes one request, and raises if the broker refuses any part of it: a `BrokerError` for one topic or
partition, `BrokerErrors` for several. The parts that were not refused have been carried out.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from minibroker.client.addresses import Address
from minibroker.client.errors import (
    BrokerError,
    BrokerUnavailable,
    ConnectionLost,
    RequestTimedOut,
    UnsupportedByBroker,
)
from minibroker.clients import dialogues
from minibroker.clients.blocking import Client
from minibroker.clients.core import Ask, Core, Dialogue
from minibroker.clients.dialogues import FoundOffset, ask_controller, by_leader, raise_errors
from minibroker.clients.routing import Node
from minibroker.controller.tables.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from minibroker.controller.tables.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponsePartition,
    TopicRequest,
)
from minibroker.controller.tables.list_partition_reassignments import ListPartitionReassignmentsRequest
from minibroker.controller.tables.unregister_broker import UnregisterBrokerRequest
from minibroker.metadata.names import CLUSTER_METADATA_TOPIC
from minibroker.raft.tables.add_raft_voter import AddRaftVoterRequest, VoterListener
from minibroker.raft.tables.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumPartition,
    QuorumTopic,
    ReplicaState,
)
from minibroker.raft.tables.remove_raft_voter import RemoveRaftVoterRequest
from minibroker.replication.tables.describe_log_dirs import DescribeLogDirsRequest
from minibroker.replication.tables.elect_leaders import (
    PREFERRED,
    UNCLEAN,
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables import incremental_alter_configs as incremental
from minibroker.wire.tables.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from minibroker.wire.tables.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from minibroker.wire.tables.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from minibroker.wire.tables.delete_topics import DeleteTopicsRequest
from minibroker.wire.tables.describe_cluster import DescribeClusterRequest
from minibroker.wire.tables.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from minibroker.wire.tables.list_offsets import (
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from minibroker.wire.tables.metadata import MetadataResponseTopic
from minibroker.wire.uuids import NO_UUID

_ANY_REPLICA = -2  # in place of a replica id: the node answers for its own log, even if it does not lead
_REPLICA_MS_MAX = 5000

TO_THE_END = -1  # in place of an offset: delete every record

_DELETE_BY_NAME = 5  # the last version of DeleteTopics with names only, which every broker understands


class ResourceType(enum.IntEnum):
    """The kind of resource that a configuration belongs to."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


class ConfigSource(enum.IntEnum):
    """The source of a configuration value."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


class ConfigOperation(enum.IntEnum):
    """A change of one configuration value."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. A count of -1 means the broker's default. `assignments` has the replicas by partition."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic as the broker created it; the numbers are -1 if the broker is too old to send them."""

    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    configs: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class DescribedPartition:
    """The leader and the replicas of a partition; a leader_id of -1 means that it has no leader."""

    partition: int
    leader_id: int
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline: Sequence[int]
    error_code: int
    eligible: Sequence[int] = ()
    """Replicas outside the ISR that may lead without a loss (KIP-966). Only `describe_eligible` sets them."""
    last_leader: int = -1
    """The last leader, while no replica is in sync. Only `describe_eligible` sets it."""


@dataclass(frozen=True, slots=True)
class DescribedTopic:
    """A topic and its partitions."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: Sequence[DescribedPartition]


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One configuration value and its source; a sensitive value is None."""

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    config_type: int = 0
    documentation: str | None = None
    synonyms: Sequence[tuple[str, str | None, int]] = ()


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The brokers of a cluster; fenced brokers serve no clients, and an old broker does not list them."""

    cluster_id: str
    controller_id: int
    nodes: Sequence[Node]
    fenced: Sequence[Node] = ()


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """The progress of a node in the metadata log. The value -1 means unknown."""

    node_id: int
    log_end_offset: int
    last_fetch_ms: int
    directory_id: bytes = NO_UUID
    """The id of the node's data directory; an old broker does not send it."""


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The leader, the voters and the observers of the metadata log."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: Sequence[QuorumReplica]
    observers: Sequence[QuorumReplica]
    nodes: Sequence[Node] = ()
    """The addresses of the voters, if the broker sends them."""

    def latest_state(self, node_id: int) -> QuorumReplica | None:
        """The newest state of a node. A node with a new disk is listed twice for a while, once for each disk."""
        known = [it for it in (*self.voters, *self.observers) if it.node_id == node_id]
        return max(known, key=lambda it: it.last_fetch_ms, default=None)


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition that is being moved: its replicas now, those being added, and those being removed."""

    replicas: Sequence[int]
    adding: Sequence[int]
    removing: Sequence[int]


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """A data directory of a node, with the sizes of its partitions and of its disk (-1 if not known)."""

    path: str
    error_code: int
    partition_bytes: Mapping[TopicPartition, int]
    total_bytes: int
    usable_bytes: int


# Topics -------------------------------------------------------------------------------------------------------------


def create_topics(
    client: Client, topics: Iterable[NewTopic], *, validate_only: bool = False
) -> dict[str, CreatedTopic]:
    """Create topics; with `validate_only`, only check whether they could be created."""
    request = CreateTopicsRequest(
        topics=[_creatable(topic) for topic in topics],
        timeout_ms=client.config.timeout_ms,
        validate_only=validate_only,
    )
    dialogue = ask_controller(client.core, request, lambda it: [topic.error_code for topic in it.topics])
    response = client.run(dialogue)
    raise_errors({f"topic {it.name}": (it.error_code, it.error_message) for it in response.topics})
    if not validate_only:
        _mark_stale(client.core, [it.name for it in response.topics])
    return {
        it.name: CreatedTopic(
            it.name,
            bytes(it.topic_id),
            it.num_partitions,
            it.replication_factor,
            {config.name: config.value for config in it.configs or ()},
        )
        for it in response.topics
    }


def _creatable(topic: NewTopic) -> CreatableTopic:
    assigned = [
        CreatableReplicaAssignment(partition_index=partition, broker_ids=list(nodes))
        for partition, nodes in topic.assignments.items()
    ]
    return CreatableTopic(
        name=topic.name,
        num_partitions=-1 if assigned else topic.partitions,
        replication_factor=-1 if assigned else topic.replication_factor,
        assignments=assigned,
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )


def _mark_stale(core: Core, topics: Iterable[str]) -> None:
    for topic in topics:
        core.routes.doubt(topic)


def delete_topics(client: Client, topics: Iterable[str]) -> None:
    """Delete topics and their records."""
    names = list(topics)
    request = DeleteTopicsRequest(topic_names=names, timeout_ms=client.config.timeout_ms)
    dialogue = ask_controller(
        client.core, request, lambda it: [topic.error_code for topic in it.responses], version_max=_DELETE_BY_NAME
    )
    response = client.run(dialogue)
    _mark_stale(client.core, names)
    raise_errors({f"topic {it.name}": (it.error_code, it.error_message) for it in response.responses})


def create_partitions(
    client: Client,
    counts: Mapping[str, int],
    *,
    assignments: Mapping[str, Sequence[Sequence[int]]] | None = None,
    validate_only: bool = False,
) -> None:
    """Increase the number of partitions; `assignments` lists the replicas of each new partition."""
    given = assignments or {}
    request = CreatePartitionsRequest(
        topics=[
            CreatePartitionsTopic(
                name=name,
                count=count,
                assignments=[CreatePartitionsAssignment(broker_ids=list(nodes)) for nodes in given[name]]
                if name in given
                else None,
            )
            for name, count in counts.items()
        ],
        timeout_ms=client.config.timeout_ms,
        validate_only=validate_only,
    )
    response = client.run(ask_controller(client.core, request, lambda it: [topic.error_code for topic in it.results]))
    _mark_stale(client.core, counts)
    raise_errors({f"topic {it.name}": (it.error_code, it.error_message) for it in response.results})


def list_topics(client: Client, *, include_internal: bool = False) -> list[str]:
    """The names of all topics, sorted."""
    topics = client.metadata().topics
    return sorted(it.name for it in topics if it.name is not None and (include_internal or not it.is_internal))


def describe_topics(client: Client, topics: Iterable[str] | None = None) -> dict[str, DescribedTopic]:
    """Describe topics and their partitions, or all topics if none are named."""
    response = client.metadata(None if topics is None else list(topics))
    raise_errors({f"topic {it.name}": (it.error_code, None) for it in response.topics})
    return {it.name: _described(it, it.name) for it in response.topics if it.name is not None}


def describe_eligible(client: Client, topics: Mapping[str, DescribedTopic]) -> dict[str, DescribedTopic]:
    """The same topics with their eligible leader replicas, which an older broker does not send."""
    # A partition whose replicas are all in sync has no eligible ones.
    names = [name for name, it in topics.items() if any(len(one.isr) < len(one.replicas) for one in it.partitions)]
    found: dict[TopicPartition, DescribeTopicPartitionsResponsePartition] = {}
    cursor: Cursor | None = None
    while names:
        request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=it) for it in names], cursor=cursor)
        try:
            response = client.send(request)
        except UnsupportedByBroker:
            break
        for topic in response.topics:
            found |= {TopicPartition(topic.name, it.partition_index): it for it in topic.partitions}
        cursor = response.next_cursor
        if cursor is None:
            break
    return {
        name: replace(
            topic,
            partitions=[_with_eligible(it, found.get(TopicPartition(name, it.partition))) for it in topic.partitions],
        )
        for name, topic in topics.items()
    }


def _with_eligible(
    partition: DescribedPartition, found: DescribeTopicPartitionsResponsePartition | None
) -> DescribedPartition:
    if found is None:
        return partition
    last_known = found.last_known_elr or [-1]
    return replace(partition, eligible=tuple(found.eligible_leader_replicas or ()), last_leader=last_known[0])


def _described(topic: MetadataResponseTopic, name: str) -> DescribedTopic:
    partitions = [
        DescribedPartition(
            it.partition_index,
            it.leader_id,
            it.leader_epoch,
            tuple(it.replica_nodes),
            tuple(it.isr_nodes),
            tuple(it.offline_replicas),
            it.error_code,
        )
        for it in sorted(topic.partitions, key=lambda it: it.partition_index)
    ]
    return DescribedTopic(name, bytes(topic.topic_id), topic.is_internal, partitions)


# Configurations -----------------------------------------------------------------------------------------------------


def describe_configs(
    client: Client,
    resource_type: ResourceType,
    names: Iterable[str],
    *,
    keys: Sequence[str] | None = None,
    include_synonyms: bool = False,
    include_documentation: bool = False,
) -> dict[str, dict[str, ConfigEntry]]:
    """The configurations of topics, or of brokers by id, with all values or only those of `keys`."""
    resources = [
        DescribeConfigsResource(
            resource_type=resource_type, resource_name=name, configuration_keys=None if keys is None else list(keys)
        )
        for name in names
    ]
    found: dict[str, dict[str, ConfigEntry]] = {}
    # Only a broker itself knows its own configuration. Any broker knows the configuration of a topic.
    for group in [[it] for it in resources] if resource_type is not ResourceType.TOPIC else [resources]:
        request = DescribeConfigsRequest(
            resources=group, include_synonyms=include_synonyms, include_documentation=include_documentation
        )
        response = client.send(request, node_id=_owner(resource_type, group[0].resource_name) if group else None)
        kind = resource_type.name.lower()
        raise_errors({f"{kind} {it.resource_name}": (it.error_code, it.error_message) for it in response.results})
        found |= {it.resource_name: {entry.name: _entry(entry) for entry in it.configs} for it in response.results}
    return found


def _owner(resource_type: ResourceType, name: str) -> int | None:
    return int(name) if resource_type is not ResourceType.TOPIC and name.isdigit() else None


def _entry(it: DescribeConfigsResourceResult) -> ConfigEntry:
    known = it.config_source in set(ConfigSource)
    return ConfigEntry(
        it.name,
        it.value,
        ConfigSource(it.config_source) if known else ConfigSource.UNKNOWN,
        it.read_only,
        it.is_sensitive,
        it.config_type,
        it.documentation,
        [(synonym.name, synonym.value, synonym.source) for synonym in it.synonyms],
    )


def alter_configs(
    client: Client,
    resource_type: ResourceType,
    name: str,
    changes: Mapping[str, str | None] | Iterable[tuple[str, ConfigOperation, str | None]],
    *,
    validate_only: bool = False,
) -> None:
    """Change single values: a text sets a value, None returns it to its default."""
    if isinstance(changes, Mapping):
        changes = [
            (key, ConfigOperation.DELETE if value is None else ConfigOperation.SET, value)
            for key, value in changes.items()
        ]
    request = incremental.IncrementalAlterConfigsRequest(
        resources=[
            incremental.AlterConfigsResource(
                resource_type=resource_type,
                resource_name=name,
                configs=[
                    incremental.AlterableConfig(name=key, config_operation=operation, value=value)
                    for key, operation, value in changes
                ],
            )
        ],
        validate_only=validate_only,
    )
    owner = _owner(resource_type, name)
    dialogue = ask_controller(client.core, request, lambda it: [one.error_code for one in it.responses], node_id=owner)
    response = client.run(dialogue)
    kind = resource_type.name.lower()
    raise_errors({f"{kind} {it.resource_name}": (it.error_code, it.error_message) for it in response.responses})


# Replicas -----------------------------------------------------------------------------------------------------------


def reassign_partitions(client: Client, replicas: Mapping[TopicPartition, Sequence[int] | None]) -> None:
    """Begin to move partitions to these nodes, the preferred leader first; None cancels a move."""
    topics: dict[str, list[ReassignablePartition]] = {}
    for (topic, partition), nodes in replicas.items():
        move = ReassignablePartition(partition_index=partition, replicas=None if nodes is None else list(nodes))
        topics.setdefault(topic, []).append(move)
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=client.config.timeout_ms,
        topics=[ReassignableTopic(name=name, partitions=them) for name, them in topics.items()],
    )
    dialogue = ask_controller(
        client.core,
        request,
        lambda it: [it.error_code, *(one.error_code for topic in it.responses for one in topic.partitions)],
    )
    response = client.run(dialogue)
    _mark_stale(client.core, topics)
    raise_errors({"moving partitions": (response.error_code, response.error_message)})
    raise_errors(
        {
            f"{topic.name}-{it.partition_index}": (it.error_code, it.error_message)
            for topic in response.responses
            for it in topic.partitions
        }
    )


def list_reassignments(client: Client) -> dict[TopicPartition, Reassignment]:
    """The partitions that are being moved."""
    request = ListPartitionReassignmentsRequest(timeout_ms=client.config.timeout_ms, topics=None)
    response = client.run(ask_controller(client.core, request, _only_code, is_read=True))
    raise_errors({"listing moves": (response.error_code, response.error_message)})
    return {
        TopicPartition(topic.name, it.partition_index): Reassignment(
            tuple(it.replicas), tuple(it.adding_replicas), tuple(it.removing_replicas)
        )
        for topic in response.topics
        for it in topic.partitions
    }


def elect_leaders(
    client: Client,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    is_unclean: bool = False,
) -> list[TopicPartition]:
    """Elect the preferred leaders of partitions, or of all if none are named. Return the partitions that got a new
    leader.

    An unclean election elects any live replica of a partition without a leader. Records that this replica lacks are
    lost.
    """
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions or ():
        topics.setdefault(topic, []).append(partition)
    named = [TopicPartitions(topic=name, partitions=numbers) for name, numbers in topics.items()]
    request = ElectLeadersRequest(
        election_type=UNCLEAN if is_unclean else PREFERRED,
        topic_partitions=None if partitions is None else named,
        timeout_ms=client.config.timeout_ms,
    )
    response = client.run(ask_controller(client.core, request, _election_codes))
    raise_errors({"electing leaders": (response.error_code, None)})
    results = {
        TopicPartition(topic.topic, it.partition_id): it
        for topic in response.replica_election_results
        for it in topic.partition_result
    }
    _mark_stale(client.core, {name.topic for name in results})
    refused = {
        str(name): (it.error_code, it.error_message)
        for name, it in results.items()
        if it.error_code != ErrorCode.ELECTION_NOT_NEEDED
    }
    raise_errors(refused)
    return [name for name, it in results.items() if it.error_code == ErrorCode.NONE]


def _election_codes(response: ElectLeadersResponse) -> list[int]:
    results = response.replica_election_results
    return [response.error_code, *(it.error_code for topic in results for it in topic.partition_result)]


@dataclass(frozen=True, slots=True, order=True)
class LogEnd:
    """Where a replica's log ends. The log with the greater `LogEnd` is more complete."""

    leader_epoch: int
    """The leader epoch of its last record."""
    offset: int
    """The offset after its last record."""


def replica_ends(
    client: Client, partitions: Mapping[TopicPartition, Iterable[int]]
) -> dict[TopicPartition, dict[int, LogEnd]]:
    """Where the logs of these nodes end, for each partition. Nodes that do not answer are left out."""
    ends: dict[TopicPartition, dict[int, LogEnd]] = {name: {} for name in partitions}
    for node_id in sorted({it for nodes in partitions.values() for it in nodes}):
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for name, nodes in partitions.items():
            if node_id in nodes:
                wanted = ListOffsetsPartition(partition_index=name.partition, timestamp=LATEST_TIMESTAMP)
                topics.setdefault(name.topic, []).append(wanted)
        named = [ListOffsetsTopic(name=name, partitions=wanted) for name, wanted in topics.items()]
        request = ListOffsetsRequest(replica_id=_ANY_REPLICA, isolation_level=0, topics=named)
        try:
            response = client.send(request, node_id=node_id, timeout_ms=_REPLICA_MS_MAX)
        except (BrokerUnavailable, ConnectionLost, RequestTimedOut):
            continue
        for topic in response.topics:
            for it in topic.partitions:
                if it.error_code == ErrorCode.NONE:
                    ends[TopicPartition(topic.name, it.partition_index)][node_id] = LogEnd(it.leader_epoch, it.offset)
    return ends


# Records and offsets ------------------------------------------------------------------------------------------------


def delete_records(client: Client, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Delete the records before an offset, or TO_THE_END; return the new start of each log."""
    return client.run(_delete_records(client.core, before))


def _delete_records(core: Core, before: Mapping[TopicPartition, int]) -> Dialogue[dict[TopicPartition, int]]:
    starts: dict[TopicPartition, int] = {}
    codes: dict[str, tuple[int, str | None]] = {}
    named = {TopicPartition(*partition): offset for partition, offset in before.items()}
    for node_id, group in (yield from by_leader(core, named)).items():
        topics: dict[str, list[DeleteRecordsPartition]] = {}
        for (topic, partition), offset in group.items():
            topics.setdefault(topic, []).append(DeleteRecordsPartition(partition_index=partition, offset=offset))
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=name, partitions=them) for name, them in topics.items()],
            timeout_ms=core.config.timeout_ms,
        )
        response = yield Ask(request, node_id)
        for found in response.topics:
            for it in found.partitions:
                name = TopicPartition(found.name, it.partition_index)
                starts[name] = it.low_watermark
                codes[str(name)] = (it.error_code, None)
    raise_errors(codes)
    return starts


def list_offsets(
    client: Client, timestamps: Mapping[TopicPartition, int], *, isolation_level: int = 0
) -> dict[TopicPartition, FoundOffset]:
    """The offsets of EARLIEST, LATEST, MAX_TIMESTAMP, or of the first record at or after a time in milliseconds."""
    return client.run(dialogues.list_offsets(client.core, timestamps, isolation_level=isolation_level))


# The cluster --------------------------------------------------------------------------------------------------------


def describe_cluster(client: Client) -> ClusterDescription:
    """The cluster's id, its controller and its nodes."""
    request = DescribeClusterRequest(include_cluster_authorized_operations=False, include_fenced_brokers=True)
    response = client.send(request)
    if response.error_code:
        raise BrokerError(response.error_code, response.error_message, about="describing the cluster")
    brokers = sorted(response.brokers, key=lambda it: it.broker_id)
    live, fenced = (
        [Node(it.broker_id, it.host, it.port, it.rack) for it in brokers if it.is_fenced is is_fenced]
        for is_fenced in (False, True)
    )
    return ClusterDescription(response.cluster_id, response.controller_id, live, fenced)


def describe_quorum(client: Client) -> QuorumDescription:
    """The leader of the metadata quorum, and the progress of every voter and observer."""
    topic = QuorumTopic(topic_name=CLUSTER_METADATA_TOPIC, partitions=[QuorumPartition(partition_index=0)])
    request = DescribeQuorumRequest(topics=[topic])
    response = client.run(ask_controller(client.core, request, _quorum_codes, node_id=None, is_read=True))
    raise_errors({"describing the quorum": (response.error_code, response.error_message)})
    found = response.topics[0].partitions[0]
    if found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        raise BrokerError(
            ErrorCode.NOT_CONTROLLER, "there is no controller at the moment", about="describing the quorum"
        )
    raise_errors({"describing the quorum": (found.error_code, found.error_message)})
    return QuorumDescription(
        found.leader_id,
        found.leader_epoch,
        found.high_watermark,
        _quorum_replicas(found.current_voters),
        _quorum_replicas(found.observers),
        [Node(it.node_id, it.listeners[0].host, it.listeners[0].port) for it in response.nodes if it.listeners],
    )


def _quorum_codes(response: DescribeQuorumResponse) -> list[int]:
    # A node that is not the leader of the quorum answers NOT_LEADER_OR_FOLLOWER, which means NOT_CONTROLLER here.
    codes = [it.error_code for topic in response.topics for it in topic.partitions]
    is_led = ErrorCode.NOT_LEADER_OR_FOLLOWER not in codes
    return [response.error_code if is_led else ErrorCode.NOT_CONTROLLER]


def _only_code(response: Any) -> list[int]:
    return [response.error_code]


def _quorum_replicas(states: Iterable[ReplicaState]) -> list[QuorumReplica]:
    found = [
        QuorumReplica(it.replica_id, it.log_end_offset, it.last_fetch_timestamp, bytes(it.replica_directory_id))
        for it in states
    ]
    return sorted(found, key=lambda it: it.node_id)


def add_voter(client: Client, node_id: int, directory_id: bytes, address: Address) -> None:
    """Make an observer with this directory a voter (KIP-853); return when the change is committed."""
    request = AddRaftVoterRequest(
        timeout_ms=client.config.timeout_ms,
        voter_id=node_id,
        voter_directory_id=directory_id,
        listeners=[VoterListener(name="CONTROLLER", host=address.host, port=address.port)],
    )
    response = client.run(ask_controller(client.core, request, _only_code, node_id=None))
    raise_errors({f"adding the voter {node_id}": (response.error_code, response.error_message)})


def remove_voter(client: Client, node_id: int, directory_id: bytes) -> None:
    """Remove the voter with this directory; return when the change is committed."""
    request = RemoveRaftVoterRequest(voter_id=node_id, voter_directory_id=directory_id)
    response = client.run(ask_controller(client.core, request, _only_code, node_id=None))
    raise_errors({f"removing the voter {node_id}": (response.error_code, response.error_message)})


def unregister_broker(client: Client, broker_id: int) -> None:
    """Unregister a broker that will not come back (KIP-631); return when the change is committed."""
    request = UnregisterBrokerRequest(broker_id=broker_id)
    response = client.run(ask_controller(client.core, request, _only_code, node_id=None))
    raise_errors({f"removing the broker {broker_id}": (response.error_code, response.error_message)})


def describe_log_dirs(client: Client, nodes: Iterable[int] | None = None) -> dict[int, list[LogDirectory]]:
    """The data directories of nodes; of all nodes if none are named."""
    if nodes is None:
        nodes = sorted(node.node_id for node in describe_cluster(client).nodes)
    return {node_id: _log_directories(client, node_id) for node_id in nodes}


def _log_directories(client: Client, node_id: int) -> list[LogDirectory]:
    response = client.send(DescribeLogDirsRequest(topics=None), node_id=node_id)
    if response.error_code != ErrorCode.NONE:
        raise BrokerError(response.error_code, about=f"the log directories of node {node_id}")
    return [
        LogDirectory(
            it.log_dir,
            it.error_code,
            {
                TopicPartition(topic.name, partition.partition_index): partition.partition_size
                for topic in it.topics
                for partition in topic.partitions
            },
            it.total_bytes,
            it.usable_bytes,
        )
        for it in response.results
    ]
