"""DescribeConfigs (key 32): the configuration of topics and brokers, and where each value comes from. A pure module.

Version 1 adds the source of each value (KIP-226), version 3 types and documentation (KIP-569).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int8, int16, int32, string


class DescribeConfigsResource(Struct):
    """One topic or broker."""

    resource_type: int = int8(about="2 for a topic, 4 for a broker")
    resource_name: str = string(about="the topic's name or the broker's id")
    configuration_keys: list[str] | None = array(string, nullable="0+", about="the keys to describe; null means all")


class DescribeConfigsRequest(Request, key=32, versions="1-4", flexible="4+"):
    """Ask for the configurations of resources."""

    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource, about="the resources to describe")
    include_synonyms: bool = boolean(
        versions="1+", default=False, about="whether to list all places where a value is set"
    )
    include_documentation: bool = boolean(
        versions="3+", default=False, about="whether to include the documentation of each key"
    )


class DescribeConfigsSynonym(Struct):
    """One place where a value is set. The place that takes precedence comes first."""

    name: str = string(
        versions="1+", about="the key's name in that place: retention.ms of a topic is log.retention.ms of a broker"
    )
    value: str | None = string(versions="1+", nullable="0+", about="the value there")
    source: int = int8(versions="1+", about="the place, numbered as in `config_source`")


class DescribeConfigsResourceResult(Struct):
    """One configuration value."""

    name: str = string(about="the name")
    value: str | None = string(nullable="0+", about="the value; null if it is a secret")
    read_only: bool = boolean(about="whether the value can be changed only by a restart")
    config_source: int = int8(
        versions="1+",
        default=-1,
        ignorable=True,
        about="where the value is set: 1 the topic, 2 this broker, 3 all brokers, 4 the broker's file, 5 the default",
    )
    is_sensitive: bool = boolean(about="whether the value is a secret")
    synonyms: list[DescribeConfigsSynonym] = array(
        DescribeConfigsSynonym, versions="1+", default=(), ignorable=True, about="the places where the value is set"
    )
    config_type: int = int8(
        versions="3+",
        default=0,
        ignorable=True,
        about="the value's type: 1 boolean, 2 string, 3 int, 4 short, 5 long, 6 double, 7 list, 8 class, 9 password",
    )
    documentation: str | None = string(
        versions="3+", nullable="0+", default="", ignorable=True, about="the meaning of the key, if requested"
    )


class DescribeConfigsResult(Struct):
    """The configuration of one topic or broker."""

    error_code: int = int16(about="0, or why there are no values")
    error_message: str | None = string(nullable="0+", about="the error message, or null")
    resource_type: int = int8(about="2 for a topic, 4 for a broker")
    resource_name: str = string(about="the topic's name or the broker's id")
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult, about="the values")


class DescribeConfigsResponse(Response, key=32, versions="1-4", flexible="4+"):
    """The configuration of each resource."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult, about="one entry for each resource")


declare(DescribeConfigsRequest, DescribeConfigsResponse)
