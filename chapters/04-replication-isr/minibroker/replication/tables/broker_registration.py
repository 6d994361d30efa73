"""BrokerRegistration (key 62): a broker that starts registers with the controller (KIP-631). A pure module.

Version 2 names the broker's log directories (KIP-858). Version 3 names the broker epoch before its last clean stop: a
broker that does not know that epoch may have lost acknowledged records (KIP-966). Version 4 lets a feature begin at
level 0. Only brokers send it.
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int16, int32, int64, string, uint16, uuid


class Listener(Struct):
    """One address of the broker."""

    name: str = string(about="the listener's name, such as PLAINTEXT")
    host: str = string(about="the host name or address of the listener")
    port: int = uint16(about="the port of the listener")
    security_protocol: int = int16(about="0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL")


class Feature(Struct):
    """One feature that the broker supports."""

    name: str = string(about="the feature, such as metadata.version")
    min_supported_version: int = int16(about="the lowest level; below version 4 a feature with level 0 is left out")
    max_supported_version: int = int16(about="the highest level")


class BrokerRegistrationRequest(Request, key=62, versions="0-4", flexible="0+"):
    """Register a broker that has started."""

    broker_id: int = int32(about="the broker")
    cluster_id: str = string(about="the id of the broker's cluster")
    incarnation_id: bytes = uuid(about="random at each start, so that a second broker with the same id is noticed")
    listeners: list[Listener] = array(Listener, about="the addresses of the broker")
    features: list[Feature] = array(Feature, default=(), about="the features that the broker supports")
    rack: str | None = string(nullable="0+", default=None, about="the broker's rack, if it has one")
    is_migrating_zk_broker: bool = boolean(versions="1+", default=False, about="always false: there is no ZooKeeper")
    log_dirs: list[bytes] = array(
        uuid, versions="2+", default=(), ignorable=True, about="the ids of the broker's log directories"
    )
    previous_broker_epoch: int = int64(
        versions="3+", default=-1, ignorable=True, about="the broker epoch before a clean stop, -1 if unknown"
    )


class BrokerRegistrationResponse(Response, key=62, versions="0-4", flexible="0+"):
    """The result of the registration."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the sender, because of a quota"
    )
    error_code: int = int16(about="0, or why the broker is not registered")
    broker_epoch: int = int64(default=-1, about="the epoch of this registration, -1 if there is none")


declare(BrokerRegistrationRequest, BrokerRegistrationResponse)
