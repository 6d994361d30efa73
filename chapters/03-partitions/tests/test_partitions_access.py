"""The filter of the access table: which callers are answered, from when on, and in which place."""

from typing import Any

from cases import case

from minibroker.partitions.access import ROWS, Access, Caller, Gate, Place, Ready
from minibroker.partitions.errors import Disconnect
from minibroker.partitions.registry import Call, Session
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.headers import RequestHeader, frame_response
from minibroker.wire.schema import Request
from minibroker.wire.tables.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState
from minibroker.wire.tables.metadata import MetadataRequest, MetadataResponse

ANSWER = MetadataResponse(brokers=[], cluster_id="", controller_id=0, topics=[])
REFUSAL = MetadataResponse(brokers=[], cluster_id="refused", controller_id=0, topics=[])


NODE = 7


def call_of(caller: str, request: Request | None = None, *, version: int = 12) -> Call[Any]:
    request = request or MetadataRequest(topics=[])
    assert request.schema.key is not None
    # The client id is a node's, whoever calls. It proves nothing.
    header = RequestHeader(request.schema.key, version, 1, f"__minibroker-node-{NODE}")
    session = Session("192.0.2.1:5000", node_id={"client": None, "node": NODE, "another node": NODE + 1}[caller])
    return Call(request, version, header, 0, session)


def gate(**state: bool) -> Gate:
    return Gate({}, **state)


def is_answered(guarded: Gate, row: Access, caller: str) -> bool:
    row = row._replace(refuse=lambda _call: REFUSAL)
    try:
        return guarded.guard(row, lambda _call: ANSWER)(call_of(caller)) is ANSWER
    except Disconnect:
        return False


def test_a_row_says_which_callers_are_answered_and_from_when_on() -> None:
    callers = ["client", "node"]
    # The callers that are answered: before the node has joined its cluster, after that, and when it is open to clients.
    rows = {
        "when ready": (Access(), [], ["node"], callers),
        "nodes always": (Access(ready=Ready.NODES_ALWAYS), ["node"], ["node"], callers),
        "always": (Access(ready=Ready.ALWAYS), callers, callers, callers),
        "nodes only": (Access(caller=Caller.NODE, ready=Ready.ALWAYS), ["node"], ["node"], ["node"]),
    }
    for name, (row, *expected) in rows.items():
        gates = (gate(), gate(is_joined=True), gate(is_joined=True, is_open=True))
        assert [[it for it in callers if is_answered(each, row, it)] for each in gates] == expected, name


def fetch_as(replica_id: int, version: int) -> FetchRequest:
    topic = FetchTopic(topic="topic", partitions=[FetchPartition(partition=3, fetch_offset=0, partition_max_bytes=1)])
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[topic])
    if version < 15:
        request.replica_id = replica_id
    else:
        request.replica_state = ReplicaState(replica_id=replica_id)
    return request


def test_a_fetch_that_names_a_replica_is_answered_only_if_the_caller_is_that_node() -> None:
    """CVE-2018-1288: a client's fetch with a replica id confirmed records that no follower had."""
    guarded = gate(is_open=True).guard(ROWS[ApiKey.FETCH], lambda _call: ANSWER)
    allowed = {(NODE, "node"), *((consumer, caller) for consumer in (-1, -2) for caller in ("client", "node"))}
    for version in (4, 11, 14, 15, 17):
        for replica_id, caller in [(it, one) for it in (-1, -2, NODE) for one in ("client", "node")]:
            with case(f"version {version}, replica {replica_id}, from a {caller}"):
                found = guarded(call_of(caller, fetch_as(replica_id, version), version=version))
                assert (found is ANSWER) is ((replica_id, caller) in allowed)
        with case(f"version {version}, from another node"):
            refused = guarded(call_of("another node", fetch_as(NODE, version), version=version))
            assert isinstance(refused, FetchResponse)
            (partition,) = refused.responses[0].partitions
            assert (partition.partition_index, partition.error_code) == (3, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            # Every version can carry the refusal.
            assert frame_response(refused, version=version, correlation_id=1)


def test_two_places_see_a_call_in_the_order_of_the_row() -> None:
    seen = []

    def filter_of(place: Place) -> Any:
        def around(call: Call[Any], inner: Any) -> Any:
            seen.append(place)
            return inner(call)

        return around

    opened = gate(is_open=True)
    opened.filters = {place: filter_of(place) for place in (Place.CONTROLLER, Place.NAMED_BROKER)}
    row = ROWS[ApiKey.ALTER_CONFIGS]
    assert opened.guard(row, lambda _call: ANSWER)(call_of("client")) is ANSWER
    assert seen == [Place.NAMED_BROKER, Place.CONTROLLER]
