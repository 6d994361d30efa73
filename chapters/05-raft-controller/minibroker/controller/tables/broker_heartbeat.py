"""BrokerHeartbeat (key 63): a broker says that it lives, or that it wants to stop (KIP-631). A pure module.

Version 1 names log directories that have failed (KIP-858), version 2 those that take no new partitions (KIP-1066). Only
brokers send it.
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, array, boolean, int16, int32, int64, uuid


class BrokerHeartbeatRequest(Request, key=63, versions="0-2", flexible="0+"):
    """I live."""

    broker_id: int = int32(about="the broker")
    broker_epoch: int = int64(default=-1, about="the epoch of its registration")
    current_metadata_offset: int = int64(about="the last offset of the metadata log that it has applied")
    want_fence: bool = boolean(about="whether it wants to lead nothing")
    want_shut_down: bool = boolean(about="whether it wants to stop")
    offline_log_dirs: list[bytes] = array(
        uuid, versions="1+", tag=0, default=(), about="the ids of log directories that have failed"
    )
    cordoned_log_dirs: list[bytes] | None = array(
        uuid, versions="2+", nullable="2+", tag=1, default=None, about="the ids of those that take no new partitions"
    )


class BrokerHeartbeatResponse(Response, key=63, versions="0-2", flexible="0+"):
    """How the controller sees you."""

    throttle_time_ms: int = int32(default=0, about="how long the sender is not read because of a quota")
    error_code: int = int16(about="0, or why the heartbeat does not count")
    is_caught_up: bool = boolean(default=False, about="whether its metadata are nearly the newest")
    is_fenced: bool = boolean(default=True, about="whether it may lead nothing")
    should_shut_down: bool = boolean(default=False, about="whether it may stop now")


declare(BrokerHeartbeatRequest, BrokerHeartbeatResponse)
