"""Every forwarded API has an answer in every version for the case that forwarding fails."""

from typing import Any

from cases import case

from minibroker.controller.tables.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from minibroker.controller.tables.list_partition_reassignments import ListPartitionReassignmentsRequest
from minibroker.controller.tables.unregister_broker import UnregisterBrokerRequest
from minibroker.raft.tables.add_raft_voter import AddRaftVoterRequest
from minibroker.raft.tables.describe_quorum import DescribeQuorumRequest
from minibroker.raft.tables.remove_raft_voter import RemoveRaftVoterRequest
from minibroker.replicas.refusing import refusal
from minibroker.replication.tables.elect_leaders import ElectLeadersRequest, TopicPartitions
from minibroker.transfer.tables.alter_client_quotas import AlterClientQuotasRequest, AlterEntry, EntityData
from minibroker.wire.apis import APIS
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request, codes_in
from minibroker.wire.tables import alter_configs as replacing
from minibroker.wire.tables import incremental_alter_configs as incremental
from minibroker.wire.tables.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from minibroker.wire.tables.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker.wire.tables.delete_topics import DeleteTopicsRequest, DeleteTopicState
from minibroker.wire.tables.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from minibroker.wire.uuids import NO_UUID

DEFAULTS: dict[str, Any] = {"num_partitions": -1, "replication_factor": -1, "assignments": [], "configs": []}
TWO = ("a", "b")
REQUESTS: list[Request] = [
    CreateTopicsRequest(topics=[CreatableTopic(name=it, **DEFAULTS) for it in TWO], timeout_ms=1),
    DeleteTopicsRequest(topic_names=list(TWO), timeout_ms=1),
    DeleteTopicsRequest(
        topics=[DeleteTopicState(name="a", topic_id=NO_UUID), DeleteTopicState(name=None, topic_id=bytes(15) + b"1")],
        timeout_ms=1,
    ),
    CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=it, count=1, assignments=None) for it in TWO],
        timeout_ms=1,
        validate_only=False,
    ),
    replacing.AlterConfigsRequest(
        resources=[replacing.AlterConfigsResource(resource_type=2, resource_name=it, configs=[]) for it in TWO],
        validate_only=False,
    ),
    incremental.IncrementalAlterConfigsRequest(
        resources=[incremental.AlterConfigsResource(resource_type=2, resource_name=it, configs=[]) for it in TWO],
        validate_only=False,
    ),
    DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=4, resource_name=it, configuration_keys=None) for it in TWO]
    ),
    AlterClientQuotasRequest(
        entries=[AlterEntry(entity=[EntityData(entity_type="user", entity_name=it)], ops=[]) for it in TWO],
        validate_only=False,
    ),
    ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="a", partitions=[0, 1])]),
    AlterPartitionReassignmentsRequest(topics=[]),
    ListPartitionReassignmentsRequest(topics=None),
    UnregisterBrokerRequest(broker_id=1),
    AddRaftVoterRequest(timeout_ms=1, voter_id=1, voter_directory_id=NO_UUID, listeners=[]),
    RemoveRaftVoterRequest(voter_id=1, voter_directory_id=NO_UUID),
    DescribeQuorumRequest(topics=[]),
]
IN_PARTS = 9  # the first 9 have a code for each topic, resource or entity


def test_a_request_that_cannot_be_forwarded_is_refused_as_a_whole() -> None:
    for request_ in REQUESTS:
        with case(type(request_).__name__):
            key = request_.schema.key
            assert key is not None
            api = APIS[key]
            for version in range(api.min_version, api.max_version + 1):
                response = refusal(request_, version, ErrorCode.REQUEST_TIMED_OUT, "why")
                count = list(codes_in(response)).count(ErrorCode.REQUEST_TIMED_OUT)
                parts = 2 if REQUESTS.index(request_) < IN_PARTS else 1
                has_both = isinstance(request_, ElectLeadersRequest)
                assert count == parts + (has_both and version >= 1), version
                if not isinstance(request_, DeleteTopicsRequest) or version >= 6 or request_.topic_names:
                    again, _end = api.response.decode(memoryview(response.encode(version)), 0, version)
                    assert list(codes_in(again)).count(ErrorCode.REQUEST_TIMED_OUT) == count, version


def test_a_refused_quota_names_its_entity() -> None:
    (request,) = (it for it in REQUESTS if isinstance(it, AlterClientQuotasRequest))
    response: Any = refusal(request, 1, ErrorCode.NOT_CONTROLLER, "why")
    assert [it.entity for it in response.entries] == [it.entity for it in request.entries]
