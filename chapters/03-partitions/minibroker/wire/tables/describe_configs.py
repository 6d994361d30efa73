"""DescribeConfigs (key 32): the configuration of topics and brokers, and where each value comes from. A pure module.

Version 1 says where a value comes from (KIP-226), version 3 adds types and documentation (KIP-569).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int8, int16, int32, string


class DescribeConfigsResource(Struct):
    """One topic or broker asked about."""

    resource_type: int = int8(about="2 a topic, 4 a broker")
    resource_name: str = string(about="the topic's name or the broker's id")
    configuration_keys: list[str] | None = array(string, nullable="0+", about="the names asked about; null means all")


class DescribeConfigsRequest(Request, key=32, versions="1-4", flexible="4+"):
    """How are these configured?"""

    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource, about="what is asked about")
    include_synonyms: bool = boolean(versions="1+", default=False, about="whether to list what a value overrides")
    include_documentation: bool = boolean(versions="3+", default=False, about="whether to explain each name")


class DescribeConfigsSynonym(Struct):
    """A place that the value could come from, the strongest first."""

    name: str = string(versions="1+", about="the name there: a broker says log.retention.ms for retention.ms")
    value: str | None = string(versions="1+", nullable="0+", about="the value there")
    source: int = int8(versions="1+", about="which place it is, numbered as `config_source`")


class DescribeConfigsResourceResult(Struct):
    """One configuration value."""

    name: str = string(about="the name")
    value: str | None = string(nullable="0+", about="the value; null if it is a secret")
    read_only: bool = boolean(about="whether it cannot be altered while the broker runs")
    config_source: int = int8(
        versions="1+",
        default=-1,
        ignorable=True,
        about="1 the topic, 2 this broker, 3 all brokers, 4 the broker's file, 5 the default",
    )
    is_sensitive: bool = boolean(about="whether it is a secret")
    synonyms: list[DescribeConfigsSynonym] = array(
        DescribeConfigsSynonym, versions="1+", default=(), ignorable=True, about="the places it could come from"
    )
    config_type: int = int8(
        versions="3+",
        default=0,
        ignorable=True,
        about="1 boolean, 2 string, 3 int, 4 short, 5 long, 6 double, 7 list, 8 class, 9 password",
    )
    documentation: str | None = string(
        versions="3+", nullable="0+", default="", ignorable=True, about="the name explained, if that was asked for"
    )


class DescribeConfigsResult(Struct):
    """The configuration of one topic or broker."""

    error_code: int = int16(about="0, or why there is nothing to show")
    error_message: str | None = string(nullable="0+", about="the error in words, or null")
    resource_type: int = int8(about="2 a topic, 4 a broker")
    resource_name: str = string(about="the topic's name or the broker's id")
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult, about="the values")


class DescribeConfigsResponse(Response, key=32, versions="1-4", flexible="4+"):
    """How they are configured."""

    throttle_time_ms: int = int32(default=0, about="how long the client is not read because of a quota")
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult, about="one entry for each resource")


declare(DescribeConfigsRequest, DescribeConfigsResponse)
