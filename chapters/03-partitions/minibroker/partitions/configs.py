"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources. A pure module."""

from collections.abc import Callable
from typing import Any

from minibroker.metadata.authority import Authority
from minibroker.metadata.config_commands import AlterConfigs, AlteredResource, ConfigChange, ResourceChange
from minibroker.metadata.config_keys import ConfigResource
from minibroker.metadata.config_resources import RESOURCES, resource_kind
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.decision import decide
from minibroker.metadata.described import Described
from minibroker.metadata.errors import Refused
from minibroker.partitions.registry import Answer, Call, propose
from minibroker.partitions.slices import Steps, sliced
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response
from minibroker.wire.tables import alter_configs as replacing
from minibroker.wire.tables import incremental_alter_configs as incremental
from minibroker.wire.tables.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from minibroker.wire.tables.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from minibroker.wire.tables.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from minibroker.wire.tables.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListedConfigResource,
)

AlterRequest = AlterConfigsRequest | IncrementalAlterConfigsRequest

_DESCRIPTIONS_PER_TURN = 50
_TIMEOUT_MS = 30_000  # the requests have no timeout; this is the default of Kafka's clients


class Configurations:
    """The handlers that show and change configurations."""

    def __init__(self, authority: Authority, node: NodeConfig) -> None:
        self._authority = authority
        self._started_with = node

    @property
    def _node(self) -> NodeConfig:
        """The configuration from the start of the node, with all dynamic changes since then."""
        return self._started_with.with_dynamic(self._authority.image.configs)

    # Show -------------------------------------------------------------------------------------------------------------

    def describe(self, call: Call[DescribeConfigsRequest]) -> Answer:
        """The handler of DescribeConfigs."""
        return sliced(self._descriptions(call.request), steps_per_turn=_DESCRIPTIONS_PER_TURN)

    def _descriptions(self, request: DescribeConfigsRequest) -> Steps:
        node = self._node
        results: list[DescribeConfigsResult] = []
        # A resource that is named twice is described once, because a description is far longer than a name.
        for resource in {(it.resource_type, it.resource_name): it for it in request.resources}.values():
            results.append(
                self._described(
                    resource,
                    node,
                    with_synonyms=request.include_synonyms,
                    with_documentation=request.include_documentation,
                )
            )
            yield None
        return DescribeConfigsResponse(results=results)

    def _described(
        self, resource: DescribeConfigsResource, node: NodeConfig, *, with_synonyms: bool, with_documentation: bool
    ) -> DescribeConfigsResult:
        result = DescribeConfigsResult(
            error_code=ErrorCode.NONE,
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[],
        )
        try:
            kind = resource_kind(resource.resource_type, "a resource of type {} has no configuration here")
            found = kind.describe(self._authority.image, resource.resource_name, node)
        except Refused as refused:
            result.error_code, result.error_message = refused.code, str(refused)
            return result
        # A null list of names and an empty list both mean all configurations.
        wanted = set(resource.configuration_keys or ())
        result.configs = [
            _entry(it, with_synonyms=with_synonyms, with_documentation=with_documentation)
            for it in found
            if not wanted or it.key.name in wanted
        ]
        return result

    def list_resources(self, call: Call[ListConfigResourcesRequest]) -> Answer:
        """The handler of ListConfigResources."""
        # Version 0 can only ask for client metrics. An empty list of types means all types.
        supported = set(ConfigResource) if call.version >= 1 else {ConfigResource.CLIENT_METRICS}
        wanted = set(call.request.resource_types) or supported
        if wanted - supported:
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        # Kafka lists topics last. A type that is not in RESOURCES has nothing to list.
        kinds = [(number, RESOURCES[number]) for number in sorted(wanted, reverse=True) if number in RESOURCES]
        return ListConfigResourcesResponse(
            config_resources=[
                ListedConfigResource(resource_name=name, resource_type=number)
                for number, kind in kinds
                for name in kind.names(self._authority.image)
            ]
        )

    # Change -----------------------------------------------------------------------------------------------------------

    def alter(self, call: Call[AlterRequest]) -> Answer:
        """The handler of AlterConfigs and of IncrementalAlterConfigs."""
        request = call.request
        return propose(self._authority, self._command(request), _altered(request), timeout_ms=_TIMEOUT_MS)

    def judge(self, call: Call[AlterRequest]) -> Response:
        """The answer that this broker would give to a request for changes. Nothing is changed."""
        decision = decide(self._authority.image, self._command(call.request))
        return _altered(call.request)(decision.result)

    def _command(self, request: AlterRequest) -> AlterConfigs:
        # AlterConfigs resets the keys that it does not name. IncrementalAlterConfigs leaves them.
        replaces = isinstance(request, AlterConfigsRequest)
        resources = [
            ResourceChange(it.resource_type, it.resource_name, [_change(config) for config in it.configs])
            for it in request.resources
        ]
        return AlterConfigs(resources, self._node, replaces=replaces, validate_only=request.validate_only)


def _change(config: replacing.AlterableConfig | incremental.AlterableConfig) -> ConfigChange:
    if isinstance(config, replacing.AlterableConfig):
        return ConfigChange(config.name, config.value)
    return ConfigChange(config.name, config.value, config.config_operation)


def _altered(request: AlterRequest) -> Callable[[list[AlteredResource]], Response]:
    """The function that turns results into the response to a request."""
    if isinstance(request, AlterConfigsRequest):
        return lambda resources: AlterConfigsResponse(
            responses=[replacing.AlterConfigsResourceResponse(**_result(it)) for it in resources]
        )
    return lambda resources: IncrementalAlterConfigsResponse(
        responses=[incremental.AlterConfigsResourceResponse(**_result(it)) for it in resources]
    )


def _result(it: AlteredResource) -> dict[str, Any]:
    return {
        "error_code": it.code,
        "error_message": it.message,
        "resource_type": it.resource_type,
        "resource_name": it.resource_name,
    }


def _entry(described: Described, *, with_synonyms: bool, with_documentation: bool) -> DescribeConfigsResourceResult:
    key = described.key
    return DescribeConfigsResourceResult(
        name=key.name,
        value=described.value,
        read_only=described.is_read_only,
        config_source=described.source,
        is_sensitive=key.is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=name, value=value, source=source) for name, value, source in described.synonyms
        ]
        if with_synonyms
        else [],
        config_type=key.type,
        documentation=key.about if with_documentation else None,
    )
