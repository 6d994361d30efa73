"""Requests about the configuration of one broker, sent to any node.

Only the broker itself knows its configuration file. So a node that is asked about another broker's configuration asks
that broker. A change is validated by that broker first, and only then sent to the controller. If the broker cannot
be reached, the change is not validated. At its next start the broker applies the settings that are valid together with
its file, and logs the others.

    client ── DescribeConfigs of 3 ──▶ node 1 ── the same ──▶ node 3
    client ── a change to 3 ─────────▶ node 1 ── validate only ──▶ node 3
                                              └─ the change ─────▶ the controller

Kafka answers INVALID_REQUEST unless the broker itself is asked.
"""

import asyncio
import copy
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

from minibroker.client.errors import ClientError
from minibroker.metadata.config_keys import ConfigResource
from minibroker.partitions.registry import Answer, Call, Handler
from minibroker.partitions.waiting import Waiting
from minibroker.replicas.later import Later
from minibroker.replicas.peers import Peers
from minibroker.replicas.refusing import refusal
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response
from minibroker.wire.tables.describe_configs import DescribeConfigsResult

log = logging.getLogger(__name__)

_ASK_MS = 5000

Key = tuple[int, str]


class BrokerConfigs:
    """The filter of configuration requests. `brokers` returns the registered brokers; `judge` validates a change."""

    def __init__(
        self,
        node_id: int,
        peers: Peers,
        waiting: Waiting[Response],
        *,
        brokers: Callable[[], Collection[int]],
        judge: Handler,
    ) -> None:
        self._node_id = node_id
        self._peers = peers
        self._later = Later(waiting)
        self._brokers = brokers
        self._judge = judge

    def answer_or_ask_broker(self, call: Call[Any], inner: Handler) -> Answer:
        """The access table's filter for calls about the configurations of single brokers."""
        is_shown = call.header.api_key == ApiKey.DESCRIBE_CONFIGS
        return self.describe(call, inner) if is_shown else self.alter(call, inner)

    # Show -------------------------------------------------------------------------------------------------------------

    def describe(self, call: Call[Any], inner: Handler) -> Answer:
        """Let each broker describe its own configuration. A call from another node is always about this broker."""
        others = self._named(call) - {self._node_id}
        if not others or call.session.node_id is not None:
            return inner(call)
        return self._later.answer(call.request, call.version, self._described(call, inner, others))

    async def _described(self, call: Call[Any], inner: Handler, others: Collection[int]) -> Response:
        theirs = await asyncio.gather(*(self._described_by(it, call) for it in others))
        names = {str(it) for it in others}
        here: Any = await self._later.answered(
            inner(_about(call, [it for it in _of(call) if not _is_broker(it, names)]))
        )
        here.results = [*here.results, *(it for results in theirs for it in results)]
        return here  # type: ignore[no-any-return]

    async def _described_by(self, node_id: int, call: Call[Any]) -> Sequence[DescribeConfigsResult]:
        asked = _about(call, [it for it in _of(call) if _is_broker(it, {str(node_id)})])
        try:
            response: Any = await self._send(node_id, asked)
        except ClientError as error:
            message = f"broker {node_id} does not answer ({error}), and only it knows its configuration: start it"
            response = refusal(asked.request, asked.version, ErrorCode.BROKER_NOT_AVAILABLE, message)
        results: Sequence[DescribeConfigsResult] = response.results
        return results

    # Change -----------------------------------------------------------------------------------------------------------

    def alter(self, call: Call[Any], inner: Handler) -> Answer:
        """Let each broker validate the changes to its configuration; valid changes go to the controller."""
        named = self._named(call)
        if not named or call.via is not None:
            return inner(call)
        if call.session.node_id is not None:
            # Another node asks this broker to validate, or forwards a change that was validated.
            return self._judge(call) if call.request.validate_only else inner(call)
        return self._later.answer(call.request, call.version, self._altered(call, inner, named))

    async def _altered(self, call: Call[Any], inner: Handler, named: Collection[int]) -> Response:
        verdicts = await asyncio.gather(*(self._verdict(it, call) for it in named))
        found = {_key(it): it for verdict in verdicts for it in verdict if it.error_code}
        left = [it for it in _of(call) if _key(it) not in found]
        nothing = refusal(_about(call, []).request, call.version, ErrorCode.NONE, "")
        answer: Any = await self._later.answered(inner(_about(call, left))) if left else nothing
        found |= {_key(it): it for it in answer.responses}
        answer.responses = [found[_key(it)] for it in _of(call)]
        return answer  # type: ignore[no-any-return]

    async def _verdict(self, node_id: int, call: Call[Any]) -> Sequence[Any]:
        asked = _about(call, [it for it in _of(call) if _is_broker(it, {str(node_id)})])
        asked.request.validate_only = True
        try:
            here = node_id == self._node_id
            response: Any = await self._later.answered(self._judge(asked)) if here else await self._send(node_id, asked)
        except ClientError as error:
            log.info(
                "broker %d does not answer, so the change to its configuration is not validated: %s", node_id, error
            )
            return ()
        verdict: Sequence[Any] = response.responses
        return verdict

    # Both -------------------------------------------------------------------------------------------------------------

    def _named(self, call: Call[Any]) -> set[int]:
        """The registered brokers that a request names."""
        names = {it.resource_name for it in _of(call) if it.resource_type == ConfigResource.BROKER}
        return {it for it in self._brokers() if str(it) in names}

    async def _send(self, node_id: int, asked: Call[Any]) -> Any:
        return await self._peers.send(
            node_id, asked.request, line="clients", timeout_ms=_ASK_MS, version_max=asked.version
        )


def _of(call: Call[Any]) -> list[Any]:
    resources: list[Any] = call.request.resources
    return resources


def _about(call: Call[Any], resources: list[Any]) -> Call[Any]:
    """A copy of the call that names only some of its resources."""
    request = copy.copy(call.request)
    request.resources = resources
    return call.about(request)


def _key(it: Any) -> Key:
    return it.resource_type, it.resource_name


def _is_broker(it: Any, names: Collection[str]) -> bool:
    return it.resource_type == ConfigResource.BROKER and it.resource_name in names
