"""ApiVersions (key 18): the APIs and versions of a broker. It is the first request on a connection. A pure module.

A broker that does not support the requested version responds in version 0, with UNSUPPORTED_VERSION and the versions
that it supports (KIP-511).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int16, int32, int64, string


class ApiVersionsRequest(Request, key=18, versions="0-4", flexible="3+"):
    """Ask for the APIs and versions of the broker."""

    client_software_name: str = string(versions="3+", default="", ignorable=True, about="the client library")
    client_software_version: str = string(
        versions="3+", default="", ignorable=True, about="the version of the client library"
    )


class ApiVersion(Struct):
    """One API that the broker serves."""

    api_key: int = int16(about="the API")
    min_version: int = int16(about="the oldest version")
    max_version: int = int16(about="the newest version")


class SupportedFeatureKey(Struct):
    """One feature, such as `metadata.version`, and the levels that the broker supports."""

    name: str = string(versions="3+", about="the feature")
    min_version: int = int16(versions="3+", about="the lowest level")
    max_version: int = int16(versions="3+", about="the highest level")


class FinalizedFeatureKey(Struct):
    """The level of a feature in the whole cluster."""

    name: str = string(versions="3+", about="the feature")
    max_version_level: int = int16(versions="3+", about="the level")
    min_version_level: int = int16(versions="3+", about="the lowest level; Kafka sends the highest level here, too")


class ApiVersionsResponse(Response, key=18, versions="0-4", flexible="3+"):
    """The APIs and versions of the broker. Its header never has tagged fields."""

    error_code: int = int16(about="0, or UNSUPPORTED_VERSION")
    api_keys: list[ApiVersion] = array(ApiVersion, about="one entry for each API")
    throttle_time_ms: int = int32(
        versions="1+",
        default=0,
        ignorable=True,
        about="how long the broker stops reading from the client, because of a quota",
    )
    supported_features: list[SupportedFeatureKey] = array(
        SupportedFeatureKey,
        versions="3+",
        tag=0,
        default=(),
        ignorable=True,
        about="the features of the broker; before version 4 a feature with lowest level 0 is left out",
    )
    finalized_features_epoch: int = int64(
        versions="3+",
        tag=1,
        default=-1,
        ignorable=True,
        about="the epoch of the cluster's features, which grows with the metadata; -1 if unknown",
    )
    finalized_features: list[FinalizedFeatureKey] = array(
        FinalizedFeatureKey, versions="3+", tag=2, default=(), ignorable=True, about="the features of the cluster"
    )
    zk_migration_ready: bool = boolean(
        versions="3+", tag=3, default=False, ignorable=True, about="used only during a migration from ZooKeeper"
    )


declare(ApiVersionsRequest, ApiVersionsResponse)
