"""The filter of the access table: which callers are answered, from when on, and in which place."""

from typing import Any

from minibroker.partitions.access import ROWS, Access, Caller, Gate, Place, Ready
from minibroker.partitions.errors import Disconnect
from minibroker.partitions.registry import Call
from minibroker.wire.apis import ApiKey
from minibroker.wire.headers import RequestHeader
from minibroker.wire.tables.metadata import MetadataRequest, MetadataResponse

ANSWER = MetadataResponse(brokers=[], cluster_id="", controller_id=0, topics=[])


def call_of(client_id: str) -> Call[Any]:
    header = RequestHeader(ApiKey.METADATA, 12, 1, client_id)
    return Call(MetadataRequest(topics=[]), 12, header, 0, "192.0.2.1:5000")


def gate(**state: bool) -> Gate:
    return Gate(lambda call: call.header.client_id == "node", {}, **state)


def is_answered(guarded: Gate, row: Access, client_id: str) -> bool:
    try:
        return guarded.guard(row, lambda _call: ANSWER)(call_of(client_id)) is ANSWER
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
