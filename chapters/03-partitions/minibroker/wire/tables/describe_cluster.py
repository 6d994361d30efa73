"""DescribeCluster (key 60): the cluster's id, its controller and its brokers (KIP-700). A pure module.

Version 1 can list controllers instead of brokers (KIP-919). Version 2 can include fenced brokers (KIP-1073).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int8, int16, int32, string

NO_AUTHORIZED_OPERATIONS = -(2**31)  # not requested
BROKERS = 1
CONTROLLERS = 2


class DescribeClusterRequest(Request, key=60, versions="0-2", flexible="0+"):
    """Ask for the cluster's id, its controller and its nodes."""

    include_cluster_authorized_operations: bool = boolean(
        about="whether to include the operations that the client may do on the cluster"
    )
    endpoint_type: int = int8(versions="1+", default=BROKERS, about="1 for the brokers, 2 for the controllers")
    include_fenced_brokers: bool = boolean(
        versions="2+", default=False, ignorable=True, about="whether to include fenced brokers"
    )


class DescribeClusterBroker(Struct):
    """One node."""

    broker_id: int = int32(about="the node")
    host: str = string(about="the node's host name or address")
    port: int = int32(about="the node's port")
    rack: str | None = string(nullable="0+", default=None, about="the node's rack, if it has one")
    is_fenced: bool = boolean(versions="2+", default=False, ignorable=True, about="whether the broker is fenced")


class DescribeClusterResponse(Response, key=60, versions="0-2", flexible="0+"):
    """The cluster's id, its controller and its nodes."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    error_code: int = int16(about="0, or why the request failed")
    error_message: str | None = string(nullable="0+", default=None, about="the error message, or null")
    endpoint_type: int = int8(
        versions="1+", default=BROKERS, about="the kind of nodes listed: 1 brokers, 2 controllers"
    )
    cluster_id: str = string(about="the cluster's id")
    controller_id: int = int32(default=-1, about="the node to send administrative requests to")
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker, about="the nodes")
    cluster_authorized_operations: int = int32(
        default=NO_AUTHORIZED_OPERATIONS, about="one bit for each operation that the client may do"
    )


declare(DescribeClusterRequest, DescribeClusterResponse)
