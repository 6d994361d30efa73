"""The list of APIs: their keys, and the tables of those that this broker speaks. A pure module."""

import enum
import re
from typing import NamedTuple

from minibroker.wire.errors import WireError
from minibroker.wire.fields import NEWEST
from minibroker.wire.schema import Request, Response
from minibroker.wire.tables.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from minibroker.wire.tables.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from minibroker.wire.tables.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from minibroker.wire.tables.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from minibroker.wire.tables.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from minibroker.wire.tables.api_versions import ApiVersionsRequest, ApiVersionsResponse
from minibroker.wire.tables.begin_quorum_epoch import BeginQuorumEpochRequest, BeginQuorumEpochResponse
from minibroker.wire.tables.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from minibroker.wire.tables.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from minibroker.wire.tables.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from minibroker.wire.tables.create_topics import CreateTopicsRequest, CreateTopicsResponse
from minibroker.wire.tables.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from minibroker.wire.tables.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from minibroker.wire.tables.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from minibroker.wire.tables.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from minibroker.wire.tables.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from minibroker.wire.tables.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from minibroker.wire.tables.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from minibroker.wire.tables.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from minibroker.wire.tables.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from minibroker.wire.tables.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from minibroker.wire.tables.envelope import EnvelopeRequest, EnvelopeResponse
from minibroker.wire.tables.fetch import FetchRequest, FetchResponse
from minibroker.wire.tables.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from minibroker.wire.tables.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from minibroker.wire.tables.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from minibroker.wire.tables.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from minibroker.wire.tables.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from minibroker.wire.tables.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from minibroker.wire.tables.metadata import MetadataRequest, MetadataResponse
from minibroker.wire.tables.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from minibroker.wire.tables.produce import ProduceRequest, ProduceResponse
from minibroker.wire.tables.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from minibroker.wire.tables.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from minibroker.wire.tables.vote import VoteRequest, VoteResponse


class ApiKey(enum.IntEnum):
    """Kafka's numbers for its APIs. Only those in `APIS` have a table here."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82


class Api(NamedTuple):
    """One API: the two messages, and the versions in which our tables have them."""

    key: int
    name: str  # Kafka's: "CreateTopics"
    request: type[Request]
    response: type[Response]
    min_version: int
    max_version: int
    flexible_from: int  # above every version if none is flexible

    def has(self, version: int) -> bool:
        """Whether the tables have a version."""
        return self.min_version <= version <= self.max_version

    def is_flexible(self, version: int) -> bool:
        """Whether the headers of a version end with tagged fields, too."""
        return version >= self.flexible_from


def _api(request: type[Request], response: type[Response]) -> Api:
    schema = request.schema
    assert schema.key is not None
    assert schema.versions is not None
    assert schema.flexible is not None
    flexible_from = schema.flexible.first if schema.flexible.last >= 0 else NEWEST + 1
    name = schema.name.removesuffix("Request")
    return Api(schema.key, name, request, response, schema.versions.first, schema.versions.last, flexible_from)


APIS: dict[int, Api] = {
    api.key: api
    for api in (
        _api(ProduceRequest, ProduceResponse),
        _api(FetchRequest, FetchResponse),
        _api(ListOffsetsRequest, ListOffsetsResponse),
        _api(MetadataRequest, MetadataResponse),
        _api(FindCoordinatorRequest, FindCoordinatorResponse),
        _api(ApiVersionsRequest, ApiVersionsResponse),
        _api(CreateTopicsRequest, CreateTopicsResponse),
        _api(DeleteTopicsRequest, DeleteTopicsResponse),
        _api(DeleteRecordsRequest, DeleteRecordsResponse),
        _api(InitProducerIdRequest, InitProducerIdResponse),
        _api(OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
        _api(DescribeConfigsRequest, DescribeConfigsResponse),
        _api(AlterConfigsRequest, AlterConfigsResponse),
        _api(DescribeLogDirsRequest, DescribeLogDirsResponse),
        _api(CreatePartitionsRequest, CreatePartitionsResponse),
        _api(ElectLeadersRequest, ElectLeadersResponse),
        _api(IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse),
        _api(AlterPartitionRequest, AlterPartitionResponse),
        _api(DescribeClusterRequest, DescribeClusterResponse),
        _api(DescribeProducersRequest, DescribeProducersResponse),
        _api(BrokerRegistrationRequest, BrokerRegistrationResponse),
        _api(BrokerHeartbeatRequest, BrokerHeartbeatResponse),
        _api(AllocateProducerIdsRequest, AllocateProducerIdsResponse),
        _api(DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse),
        _api(VoteRequest, VoteResponse),
        _api(BeginQuorumEpochRequest, BeginQuorumEpochResponse),
        _api(EndQuorumEpochRequest, EndQuorumEpochResponse),
        _api(DescribeQuorumRequest, DescribeQuorumResponse),
        _api(AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse),
        _api(ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse),
        _api(EnvelopeRequest, EnvelopeResponse),
        _api(FetchSnapshotRequest, FetchSnapshotResponse),
        _api(AddRaftVoterRequest, AddRaftVoterResponse),
        _api(RemoveRaftVoterRequest, RemoveRaftVoterResponse),
        _api(UnregisterBrokerRequest, UnregisterBrokerResponse),
    )
}


def message_named(name: str) -> type[Request] | type[Response]:
    """The class of a request or a response, by its name in the tables."""
    for api in APIS.values():
        for message in (api.request, api.response):
            if message.__name__ == name:
                return message
    raise WireError(f"there is no message {name}; there are {', '.join(api.name for api in APIS.values())}")


def snake_case(name: str) -> str:
    """The name of an API as its table's module has it: `CreateTopics` is in `create_topics`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
