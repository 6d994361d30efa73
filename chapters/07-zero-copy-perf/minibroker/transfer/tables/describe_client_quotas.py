"""DescribeClientQuotas (key 48): the quotas of the entities that a filter selects (KIP-546). A pure module."""

from minibroker.transfer.tables.alter_client_quotas import EntityData
from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, float64, int8, int16, int32, string


class ComponentData(Struct):
    """A condition on one type of name."""

    entity_type: str = string(about="user, client-id or ip")
    match_type: int = int8(about="0 this name, 1 the default, 2 any name and the default")
    match: str | None = string(nullable="0+", about="the name, or null if the match needs none")


class DescribeClientQuotasRequest(Request, key=48, versions="0-1", flexible="1+"):
    """Ask for quotas."""

    components: list[ComponentData] = array(ComponentData, about="the conditions, each type once; none selects all")
    strict: bool = boolean(about="whether to leave out entities that have a type without a condition")


class ValueData(Struct):
    """One quota."""

    key: str = string(about="the quota, such as producer_byte_rate")
    value: float = float64(about="its value")


class DescribedEntry(Struct):
    """The quotas of one entity."""

    entity: list[EntityData] = array(EntityData, about="the clients that have the quotas")
    values: list[ValueData] = array(ValueData, about="the quotas that are set for this entity")


class DescribeClientQuotasResponse(Response, key=48, versions="0-1", flexible="1+"):
    """The entities that fit, and their quotas."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    error_code: int = int16(default=0, about="0, or why the filter is refused")
    error_message: str | None = string(nullable="0+", default=None, about="the reason as text")
    entries: list[DescribedEntry] | None = array(
        DescribedEntry, nullable="0+", default=None, about="the entities; null after an error"
    )


declare(DescribeClientQuotasRequest, DescribeClientQuotasResponse)
