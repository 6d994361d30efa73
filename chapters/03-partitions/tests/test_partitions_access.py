"""The filter of the access table: who is heard, from when on, and where a call is answered."""

from typing import Any

import pytest

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


def is_heard(guarded: Gate, row: Access, client_id: str) -> bool:
    try:
        return guarded.guard(row, lambda _call: ANSWER)(call_of(client_id)) is ANSWER
    except Disconnect:
        return False


@pytest.mark.parametrize(
    ("row", "heard_early", "heard_joined"),
    [
        (Access(), [], ["node"]),
        (Access(ready=Ready.NODES_ALWAYS), ["node"], ["node"]),
        (Access(ready=Ready.ALWAYS), ["client", "node"], ["client", "node"]),
        (Access(caller=Caller.NODE, ready=Ready.ALWAYS), ["node"], ["node"]),
    ],
    ids=["when ready", "nodes always", "always", "nodes only"],
)
def test_a_row_says_who_is_heard_and_from_when_on(row: Access, heard_early: list[str], heard_joined: list[str]) -> None:
    callers = ["client", "node"]
    assert [it for it in callers if is_heard(gate(), row, it)] == heard_early
    assert [it for it in callers if is_heard(gate(is_joined=True), row, it)] == heard_joined
    opened = gate(is_joined=True, is_open=True)
    assert [it for it in callers if is_heard(opened, row, it)] == (["node"] if row.caller is Caller.NODE else callers)


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
