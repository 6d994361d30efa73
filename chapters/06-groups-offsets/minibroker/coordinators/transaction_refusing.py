"""For each transaction API, the answer that has one code for everything. A pure module.

The code may be NONE: most answers have nothing else to say. PRODUCER_FENCED is sent as INVALID_PRODUCER_EPOCH in
versions whose clients do not know it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.tables.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from minibroker.transactions.tables.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)
from minibroker.transactions.tables.describe_transactions import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from minibroker.transactions.tables.end_txn import EndTxnRequest, EndTxnResponse
from minibroker.transactions.tables.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request, Response
from minibroker.wire.tables.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

BATCHED_FROM = 4  # the first version of AddPartitionsToTxn with several transactions

_FENCED_FROM: dict[type[Request], int] = {
    InitProducerIdRequest: 4,
    AddPartitionsToTxnRequest: 2,
    AddOffsetsToTxnRequest: 2,
    EndTxnRequest: 2,
}
"""The first version of each API whose clients know PRODUCER_FENCED."""


def transaction_refusal(request: Request, version: int, code: ErrorCode) -> Response:
    """The answer with one code."""
    if code is ErrorCode.PRODUCER_FENCED and version < _FENCED_FROM[type(request)]:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return _REFUSALS[type(request)](request, version, code)


def names_in(topics: Iterable[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    """The partitions of a request."""
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]


def results_of(
    topics: Iterable[AddPartitionsToTxnTopic], codes: Mapping[TopicPartition, ErrorCode]
) -> list[AddPartitionsToTxnTopicResult]:
    """The code of each partition of a request."""
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=codes[TopicPartition(topic.name, index)]
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def _all(topics: list[AddPartitionsToTxnTopic], code: ErrorCode) -> list[AddPartitionsToTxnTopicResult]:
    return results_of(topics, dict.fromkeys(names_in(topics), code))


def _add_partitions(request: AddPartitionsToTxnRequest, version: int, code: ErrorCode) -> Response:
    if version < BATCHED_FROM:
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_all(request.v3_and_below_topics, code))
    results = [
        AddPartitionsToTxnResult(transactional_id=it.transactional_id, topic_results=_all(it.topics, code))
        for it in request.transactions
    ]
    return AddPartitionsToTxnResponse(results_by_transaction=results)


def _describe(request: DescribeTransactionsRequest, _version: int, code: ErrorCode) -> Response:
    states = [DescribedTransaction(transactional_id=it, error_code=code) for it in request.transactional_ids]
    return DescribeTransactionsResponse(transaction_states=states)


def _init(_request: InitProducerIdRequest, _version: int, code: ErrorCode) -> Response:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


_REFUSALS: dict[type[Request], Callable[[Any, int, ErrorCode], Response]] = {
    InitProducerIdRequest: _init,
    AddPartitionsToTxnRequest: _add_partitions,
    AddOffsetsToTxnRequest: lambda _request, _version, code: AddOffsetsToTxnResponse(error_code=code),
    EndTxnRequest: lambda _request, _version, code: EndTxnResponse(error_code=code),
    DescribeTransactionsRequest: _describe,
    ListTransactionsRequest: lambda _request, _version, code: ListTransactionsResponse(error_code=code),
}
