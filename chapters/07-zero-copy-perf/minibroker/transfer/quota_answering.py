"""The handlers of DescribeClientQuotas and AlterClientQuotas. A pure module."""

from collections.abc import Sequence

from minibroker.metadata.authority import Authority
from minibroker.metadata.decision import Outcome, duplicates
from minibroker.metadata.errors import Refused
from minibroker.metadata.names import quoted
from minibroker.partitions.registry import Answer, Call, propose
from minibroker.transfer.matching import CLIENT_ID, IP, USER, Quotas
from minibroker.transfer.quota_commands import AlterClientQuotas, Entity, EntityChange, QuotaChange
from minibroker.transfer.tables.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredEntry,
    EntityData,
)
from minibroker.transfer.tables.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribedEntry,
    ValueData,
)
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response

_TIMEOUT_MS = 30_000
EXACT, DEFAULT, SPECIFIED = 0, 1, 2


class QuotaHandlers:
    """The handlers of the two APIs."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    def alter(self, call: Call[AlterClientQuotasRequest]) -> Answer:
        """The handler of AlterClientQuotas."""
        entries = [
            EntityChange(
                tuple((name.entity_type, name.entity_name) for name in it.entity),
                [QuotaChange(op.key, None if op.remove else op.value) for op in it.ops],
            )
            for it in call.request.entries
        ]
        command = AlterClientQuotas(entries, call.request.validate_only)
        return propose(self._authority, command, _altered, timeout_ms=_TIMEOUT_MS)

    def describe(self, call: Call[DescribeClientQuotasRequest]) -> Answer:
        """The handler of DescribeClientQuotas. Every node has all quotas in its image."""
        try:
            found = selected(self._authority.image.client_quotas, call.request)
        except Refused as refused:
            return DescribeClientQuotasResponse(error_code=refused.code, error_message=str(refused))
        return DescribeClientQuotasResponse(
            entries=[
                DescribedEntry(
                    entity=_names(entity),
                    values=[ValueData(key=key, value=value) for key, value in values.items()],
                )
                for entity, values in found.items()
            ]
        )


def _altered(results: list[Outcome[Entity]]) -> Response:
    return AlterClientQuotasResponse(
        entries=[
            AlteredEntry(
                error_code=it.code,
                error_message=it.message,
                entity=_names(it.name),
            )
            for it in results
        ]
    )


def _names(entity: Entity) -> list[EntityData]:
    return [EntityData(entity_type=type_, entity_name=name) for type_, name in entity]


def selected(quotas: Quotas, request: DescribeClientQuotasRequest) -> Quotas:
    """The quotas of the entities that fulfil all conditions. Raises `Refused` if the filter makes no sense."""
    _check_filter(request.components)
    return {entity: values for entity, values in quotas.items() if _fits(dict(entity), request)}


def _fits(entity: dict[str, str | None], request: DescribeClientQuotasRequest) -> bool:
    is_complete = len(entity) == len(request.components) or not request.strict
    return is_complete and all(
        it.entity_type in entity and (it.match_type == SPECIFIED or entity[it.entity_type] == it.match)
        for it in request.components
    )


def _check_filter(components: Sequence[ComponentData]) -> None:
    types = [it.entity_type for it in components]
    if "" in types:
        raise Refused(ErrorCode.INVALID_REQUEST, "the type of a condition is empty: use user, client-id or ip")
    if duplicates(types):
        raise Refused(ErrorCode.INVALID_REQUEST, "the filter has two conditions on one type")
    unknown = [it for it in types if it not in (USER, CLIENT_ID, IP)]
    if unknown:
        raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"{quoted(unknown[0])} is no type: use user, client-id or ip")
    if IP in types and len(types) > 1:
        raise Refused(ErrorCode.INVALID_REQUEST, "a condition on ip cannot be combined with another one")
    for it in components:
        if it.match_type not in (EXACT, DEFAULT, SPECIFIED):
            raise Refused(ErrorCode.INVALID_REQUEST, f"match type {it.match_type} is unknown: use 0, 1 or 2")
        if (it.match is not None) != (it.match_type == EXACT):
            raise Refused(ErrorCode.INVALID_REQUEST, "match type 0 needs a name, and the others have none")
