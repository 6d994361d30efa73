"""FindCoordinator (key 10): which broker looks after a group, or after a transactional producer. A pure module.

Version 1 can ask for transactions, too; version 4 asks for many keys at once (KIP-699).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int8, int16, int32, string


class FindCoordinatorRequest(Request, key=10, versions="0-4", flexible="3+"):
    """Who coordinates these?"""

    key: str = string(versions="0-3", default="", about="the group, or the transactional id")
    key_type: int = int8(versions="1+", default=0, about="what the keys are: 0 groups, 1 transactional ids")
    coordinator_keys: list[str] = array(string, versions="4+", default=(), about="the groups, or the transactional ids")


class Coordinator(Struct):
    """The coordinator of one key."""

    key: str = string(versions="4+", about="the group, or the transactional id")
    node_id: int = int32(versions="4+", about="the broker, or -1")
    host: str = string(versions="4+", about="where to reach it")
    port: int = int32(versions="4+", about="where to reach it")
    error_code: int = int16(versions="4+", about="0, or why there is none")
    error_message: str | None = string(
        versions="4+", nullable="4+", default="", ignorable=True, about="the same in words"
    )


class FindCoordinatorResponse(Response, key=10, versions="0-4", flexible="3+"):
    """The coordinators. Up to version 3 there is one, and its fields stand here."""

    throttle_time_ms: int = int32(
        versions="1+", default=0, ignorable=True, about="how long the client is not read because of a quota"
    )
    error_code: int = int16(versions="0-3", default=0, about="0, or why there is none")
    error_message: str | None = string(
        versions="1-3", nullable="1-3", default="", ignorable=True, about="the same in words"
    )
    node_id: int = int32(versions="0-3", default=0, about="the broker, or -1")
    host: str = string(versions="0-3", default="", about="where to reach it")
    port: int = int32(versions="0-3", default=0, about="where to reach it")
    coordinators: list[Coordinator] = array(Coordinator, versions="4+", default=(), about="one for each key")


declare(FindCoordinatorRequest, FindCoordinatorResponse)
