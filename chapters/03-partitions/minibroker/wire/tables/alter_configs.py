"""AlterConfigs (key 33): replaces the whole configuration of a topic or broker. A pure module.

Every key that the request does not name is reset to its default. IncrementalAlterConfigs replaces this API.
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int8, int16, int32, string


class AlterableConfig(Struct):
    """One value to set."""

    name: str = string(about="the name")
    value: str | None = string(nullable="0+", about="the value; null means the default value of the configuration")


class AlterConfigsResource(Struct):
    """One topic or broker."""

    resource_type: int = int8(about="2 for a topic, 4 for a broker")
    resource_name: str = string(about="the topic's name or the broker's id")
    configs: list[AlterableConfig] = array(AlterableConfig, about="every value that differs from its default")


class AlterConfigsRequest(Request, key=33, versions="0-2", flexible="2+"):
    """Replace the configurations of resources."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource, about="what to configure")
    validate_only: bool = boolean(about="whether to check only, and change nothing")


class AlterConfigsResourceResponse(Struct):
    """The result for one topic or broker."""

    error_code: int = int16(about="0, or why nothing was changed")
    error_message: str | None = string(nullable="0+", about="the error message, or null")
    resource_type: int = int8(about="2 for a topic, 4 for a broker")
    resource_name: str = string(about="the topic's name or the broker's id")


class AlterConfigsResponse(Response, key=33, versions="0-2", flexible="2+"):
    """The result for each resource."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    responses: list[AlterConfigsResourceResponse] = array(
        AlterConfigsResourceResponse, about="one entry for each resource"
    )


declare(AlterConfigsRequest, AlterConfigsResponse)
