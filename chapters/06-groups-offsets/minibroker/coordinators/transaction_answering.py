"""The handlers of the transaction APIs: each finds the coordinator of a request, and passes the request to it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from minibroker.coordinators.coordinator import Coordinator, Event
from minibroker.coordinators.regexes import compiled
from minibroker.coordinators.state_topics import StateTopic
from minibroker.coordinators.tickets import Ticket, answer_of, merged
from minibroker.coordinators.transaction_refusing import (
    BATCHED_FROM,
    names_in,
    results_of,
    transaction_refusal,
)
from minibroker.groups.pending import Producer
from minibroker.groups.regexes import InvalidRegex
from minibroker.metadata.image import Image
from minibroker.partitions.registry import Answer, Call, Handler, Registry
from minibroker.partitions.slices import in_parts
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.describing import filter_of, unknown_states
from minibroker.transactions.markers import TRANSACTION_VERSION_2
from minibroker.transactions.records import ID_BYTES_MAX
from minibroker.transactions.shard import BROKER_PARKED_MS_MAX, TransactionShard, TransactionStep
from minibroker.transactions.tables.add_offsets_to_txn import AddOffsetsToTxnRequest
from minibroker.transactions.tables.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTransaction,
)
from minibroker.transactions.tables.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from minibroker.transactions.tables.end_txn import EndTxnRequest
from minibroker.transactions.tables.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request, Response
from minibroker.wire.tables.init_producer_id import InitProducerIdRequest

Act = Callable[[TransactionShard, Ticket, int], TransactionStep]
_IDS_PER_TURN = 200


class Pass(Protocol):
    """Passes a request to the coordinator of a transactional id, if it is on this node."""

    def __call__(self, key: str, ticket: Ticket, event: Event[TransactionShard], *, may_wait: bool = True) -> None:
        """`may_wait` says whether the request may wait until the coordinator can answer."""


class TransactionHandlers:
    """The handlers of the transaction APIs."""

    def __init__(
        self,
        pass_on: Pass,
        coordinators: Callable[[], Iterable[Coordinator[TransactionShard]]],
        *,
        image: Callable[[], Image],
        offsets: StateTopic,
        without_id: Handler,
    ) -> None:
        """`offsets` is the topic of the group coordinators. `without_id` answers InitProducerId if it names no id."""
        self._pass_on = pass_on
        self._coordinators = coordinators
        self._image = image
        self._offsets = offsets
        self._without_id = without_id

    def add_handlers(self, registry: Registry) -> None:
        """Register the handlers. That of InitProducerId replaces chapter 03's."""
        registry.add(ApiKey.INIT_PRODUCER_ID, self.init)
        registry.add(ApiKey.ADD_PARTITIONS_TO_TXN, self.add_partitions)
        registry.add(ApiKey.ADD_OFFSETS_TO_TXN, self.add_offsets)
        registry.add(ApiKey.END_TXN, self.end)
        describe = in_parts(self.describe, "transactional_ids", "transaction_states", size=_IDS_PER_TURN)
        registry.add(ApiKey.DESCRIBE_TRANSACTIONS, describe)
        registry.add(ApiKey.LIST_TRANSACTIONS, self.list)

    def _ask(self, request: Request, version: int, transactional_id: str, act: Act) -> Ticket:
        ticket = Ticket(lambda code: transaction_refusal(request, version, code))
        if not transactional_id or len(transactional_id.encode()) > ID_BYTES_MAX:
            ticket.complete(ErrorCode.INVALID_REQUEST)
        else:
            self._pass_on(transactional_id, ticket, lambda shard, now_ms: act(shard, ticket, now_ms))
        return ticket

    def _answer(self, call: Call[Any], transactional_id: str, act: Act) -> Answer:
        return answer_of(self._ask(call.request, call.version, transactional_id, act))

    # Producers --------------------------------------------------------------------------------------------------------

    def init(self, call: Call[InitProducerIdRequest]) -> Answer:
        """The handler of InitProducerId."""
        it = call.request
        if it.transactional_id is None:
            return self._without_id(call)
        return self._answer(call, it.transactional_id, lambda shard, ticket, now: shard.on_init(ticket, it, now))

    def end(self, call: Call[EndTxnRequest]) -> Answer:
        """The handler of EndTxn."""
        it = call.request
        return self._answer(
            call, it.transactional_id, lambda shard, ticket, now: shard.on_end(ticket, it, call.version, now)
        )

    def add_offsets(self, call: Call[AddOffsetsToTxnRequest]) -> Answer:
        """The handler of AddOffsetsToTxn: the partition with the group's offsets takes part in the transaction."""
        it = call.request
        who, name = Producer(it.producer_id, it.producer_epoch), self._offsets.partition_of(it.group_id)
        if not it.group_id:
            return transaction_refusal(it, call.version, ErrorCode.INVALID_GROUP_ID)
        if name is None:
            self._offsets.create()
            return transaction_refusal(it, call.version, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return self._answer(call, it.transactional_id, _adding(it.transactional_id, who, [name], client_version=0))

    def add_partitions(self, call: Call[AddPartitionsToTxnRequest]) -> Answer:
        """The handler of AddPartitionsToTxn, in the form of clients and in that of nodes."""
        it, version = call.request, call.version
        if version >= BATCHED_FROM:
            if call.session.node_id is None:
                return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            return merged([self._add_batched(one, version) for one in it.transactions], _merged)
        names = names_in(it.v3_and_below_topics)
        unknown = [name for name in names if self._image().partition(name) is None]
        if unknown:
            # Nothing is added if one partition is missing.
            others = dict.fromkeys(names, ErrorCode.OPERATION_NOT_ATTEMPTED)
            codes = {**others, **dict.fromkeys(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)}
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results_of(it.v3_and_below_topics, codes))
        who = Producer(it.v3_and_below_producer_id, it.v3_and_below_producer_epoch)
        transactional_id = it.v3_and_below_transactional_id
        return self._answer(call, transactional_id, _adding(transactional_id, who, names, client_version=0))

    def _add_batched(self, one: AddPartitionsToTxnTransaction, version: int) -> Ticket:
        """Add the partitions of one transaction for a node, or verify them."""
        request = AddPartitionsToTxnRequest(transactions=[one])
        who, names = Producer(one.producer_id, one.producer_epoch), names_in(one.topics)
        if not one.verify_only:
            act = _adding(
                one.transactional_id,
                who,
                names,
                client_version=TRANSACTION_VERSION_2,
                parked_ms_max=BROKER_PARKED_MS_MAX,
            )
            return self._ask(request, version, one.transactional_id, act)

        def answer(codes: Mapping[TopicPartition, ErrorCode]) -> Response:
            result = AddPartitionsToTxnResult(
                transactional_id=one.transactional_id, topic_results=results_of(one.topics, codes)
            )
            return AddPartitionsToTxnResponse(results_by_transaction=[result])

        return self._ask(
            request,
            version,
            one.transactional_id,
            lambda shard, ticket, _now: shard.on_verify(ticket, one.transactional_id, who, names, answer),
        )

    # Administrators ---------------------------------------------------------------------------------------------------

    def describe(self, call: Call[DescribeTransactionsRequest]) -> Answer:
        """The handler of DescribeTransactions."""

        def ask(transactional_id: str) -> Ticket:
            part = DescribeTransactionsRequest(transactional_ids=[transactional_id])
            return self._ask(
                part,
                call.version,
                transactional_id,
                lambda shard, ticket, _: shard.on_describe(ticket, transactional_id),
            )

        return merged([ask(it) for it in call.request.transactional_ids], _described)

    def list(self, call: Call[ListTransactionsRequest]) -> Answer:
        """The handler of ListTransactions: the ids of all coordinators on this node."""
        request, version = call.request, call.version
        try:
            matches = compiled(request.transactional_id_pattern) if request.transactional_id_pattern else _any
        except InvalidRegex:
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
        passes, unknown = filter_of(request, matches), unknown_states(request.state_filters)

        def ask(coordinator: Coordinator[TransactionShard]) -> Ticket:
            ticket = Ticket(lambda code: transaction_refusal(request, version, code))
            coordinator.handle(ticket, lambda shard, now_ms: shard.on_list(ticket, passes, now_ms))
            return ticket

        return merged([ask(it) for it in self._coordinators()], lambda parts: _listed(parts, unknown))


def _adding(
    transactional_id: str, who: Producer, names: Iterable[TopicPartition], *, client_version: int, **options: int
) -> Act:
    wanted = frozenset(names)

    def act(shard: TransactionShard, ticket: Ticket, now_ms: int) -> TransactionStep:
        return shard.on_add(
            ticket, transactional_id, who, wanted, client_version=client_version, now_ms=now_ms, **options
        )

    return act


def _any(_transactional_id: str) -> bool:
    return True


def _merged(parts: Sequence[Any]) -> Response:
    return AddPartitionsToTxnResponse(
        results_by_transaction=[it for part in parts for it in part.results_by_transaction]
    )


def _described(parts: Sequence[Any]) -> Response:
    return DescribeTransactionsResponse(transaction_states=[it for part in parts for it in part.transaction_states])


def _listed(parts: Sequence[Any], unknown: list[str]) -> Response:
    # A coordinator that is loading cannot list its ids. A client would not notice that they are missing.
    codes = [part.error_code for part in parts if part.error_code != ErrorCode.NONE]
    if ErrorCode.COORDINATOR_LOAD_IN_PROGRESS in codes:
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return ListTransactionsResponse(
        unknown_state_filters=unknown, transaction_states=[it for part in parts for it in part.transaction_states]
    )
