"""ListConfigResources (key 74): the resources that have a configuration. A pure module.

Version 0 lists subscriptions to client metrics only (KIP-1000). Version 1 lists the resources of any type (KIP-1142).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int8, int16, int32, string

CLIENT_METRICS = 16


class ListConfigResourcesRequest(Request, key=74, versions="0-1", flexible="0+"):
    """Ask for the resources that can be configured."""

    resource_types: list[int] = array(
        int8,
        versions="1+",
        default=(),
        about="the types: 2 topics, 4 brokers, 8 broker loggers, 16 client metrics, 32 groups; an empty list means all",
    )


class ListedConfigResource(Struct):
    """One resource; Kafka calls the struct ConfigResource."""

    resource_name: str = string(about="the topic's name, the broker's id and so on")
    resource_type: int = int8(
        versions="1+", default=CLIENT_METRICS, ignorable=True, about="the resource's type, numbered as in the request"
    )


class ListConfigResourcesResponse(Response, key=74, versions="0-1", flexible="0+"):
    """The resources that can be configured."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    error_code: int = int16(default=0, about="0, or UNSUPPORTED_VERSION if a type is unknown")
    config_resources: list[ListedConfigResource] = array(
        ListedConfigResource, default=(), about="one entry for each resource"
    )


declare(ListConfigResourcesRequest, ListConfigResourcesResponse)
