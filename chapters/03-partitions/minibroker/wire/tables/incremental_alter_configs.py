"""IncrementalAlterConfigs (key 44): changes single values and keeps the others (KIP-339). A pure module."""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int8, int16, int32, string


class AlterableConfig(Struct):
    """One change of a configuration value."""

    name: str = string(about="the name")
    config_operation: int = int8(about="the operation: 0 set, 1 delete, 2 append to a list, 3 subtract from a list")
    value: str | None = string(nullable="0+", about="the value; null if the operation is delete")


class AlterConfigsResource(Struct):
    """One topic or broker."""

    resource_type: int = int8(about="2 for a topic, 4 for a broker")
    resource_name: str = string(about="the topic's name or the broker's id")
    configs: list[AlterableConfig] = array(AlterableConfig, about="the changes")


class IncrementalAlterConfigsRequest(Request, key=44, versions="0-1", flexible="1+"):
    """Change single configuration values."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource, about="what to change")
    validate_only: bool = boolean(about="whether to check only, and change nothing")


class AlterConfigsResourceResponse(Struct):
    """The result for one topic or broker."""

    error_code: int = int16(about="0, or why nothing was changed")
    error_message: str | None = string(nullable="0+", about="the error message, or null")
    resource_type: int = int8(about="2 for a topic, 4 for a broker")
    resource_name: str = string(about="the topic's name or the broker's id")


class IncrementalAlterConfigsResponse(Response, key=44, versions="0-1", flexible="1+"):
    """The result for each resource."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    responses: list[AlterConfigsResourceResponse] = array(
        AlterConfigsResourceResponse, about="one entry for each resource"
    )


declare(IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse)
