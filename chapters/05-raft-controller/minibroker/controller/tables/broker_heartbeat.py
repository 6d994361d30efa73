"""BrokerHeartbeat (key 63): a broker renews its session, or asks to shut down (KIP-631). A pure module.

Version 1 names log directories that have failed (KIP-858), version 2 log directories that accept no new partitions
(KIP-1066). Only brokers send this request.
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, array, boolean, int16, int32, int64, uuid


class BrokerHeartbeatRequest(Request, key=63, versions="0-2", flexible="0+"):
    """Renew the session of a broker."""

    broker_id: int = int32(about="the broker")
    broker_epoch: int = int64(default=-1, about="the broker epoch of the sender")
    current_metadata_offset: int = int64(about="the last offset of the metadata log that the broker has applied")
    want_fence: bool = boolean(about="whether the broker asks to be fenced")
    want_shut_down: bool = boolean(about="whether the broker asks to shut down")
    offline_log_dirs: list[bytes] = array(
        uuid, versions="1+", tag=0, default=(), about="the ids of log directories that have failed"
    )
    cordoned_log_dirs: list[bytes] | None = array(
        uuid,
        versions="2+",
        nullable="2+",
        tag=1,
        default=None,
        about="the ids of log directories that accept no new partitions",
    )


class BrokerHeartbeatResponse(Response, key=63, versions="0-2", flexible="0+"):
    """The state of the broker."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the sender, because of a quota"
    )
    error_code: int = int16(about="0, or why the heartbeat was refused")
    is_caught_up: bool = boolean(default=False, about="whether the broker's metadata are up to date")
    is_fenced: bool = boolean(default=True, about="whether the broker is fenced")
    should_shut_down: bool = boolean(default=False, about="whether the broker may stop now")


declare(BrokerHeartbeatRequest, BrokerHeartbeatResponse)
