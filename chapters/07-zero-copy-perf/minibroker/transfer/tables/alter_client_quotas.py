"""AlterClientQuotas (key 49): sets and removes quotas of users, client ids and addresses (KIP-546). A pure module."""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, float64, int16, int32, string


class EntityData(Struct):
    """One part of an entity."""

    entity_type: str = string(about="user, client-id or ip")
    entity_name: str | None = string(nullable="0+", about="the name, or null for the default of this type")


class OpData(Struct):
    """One change."""

    key: str = string(about="the quota, such as producer_byte_rate")
    value: float = float64(about="its new value; without meaning if it is removed")
    remove: bool = boolean(about="whether the quota is removed")


class AlterEntry(Struct):
    """The changes for one entity."""

    entity: list[EntityData] = array(EntityData, about="the clients that have the quota")
    ops: list[OpData] = array(OpData, about="the changes, each quota once")


class AlterClientQuotasRequest(Request, key=49, versions="0-1", flexible="1+"):
    """Change quotas."""

    entries: list[AlterEntry] = array(AlterEntry, about="the changes, each entity once")
    validate_only: bool = boolean(about="whether to check only, and change nothing")


class AlteredEntry(Struct):
    """The result for one entity."""

    error_code: int = int16(about="0, or why nothing was changed for this entity")
    error_message: str | None = string(nullable="0+", about="the reason as text")
    entity: list[EntityData] = array(EntityData, about="the entity, as in the request")


class AlterClientQuotasResponse(Response, key=49, versions="0-1", flexible="1+"):
    """The result for each entity."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    entries: list[AlteredEntry] = array(AlteredEntry, about="one entry for each entity of the request")


declare(AlterClientQuotasRequest, AlterClientQuotasResponse)
