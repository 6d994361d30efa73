"""AddPartitionsToTxn (key 24): adds partitions to a transaction before its producer writes there. A pure module.

Clients use the versions up to 3, brokers the later ones. Version 4 carries several transactions, and can ask whether
partitions are in a transaction without adding them (KIP-890). Version 5 adds the error TRANSACTION_ABORTABLE.
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int16, int32, int64, string


class AddPartitionsToTxnTopic(Struct):
    """Partitions of one topic."""

    name: str = string(about="the topic")
    partitions: list[int] = array(int32, about="its partitions")


class AddPartitionsToTxnTransaction(Struct):
    """One transaction."""

    transactional_id: str = string(versions="4+", about="the transactional id")
    producer_id: int = int64(versions="4+", about="the producer id that the transactional id has")
    producer_epoch: int = int16(versions="4+", about="the epoch of the producer id")
    verify_only: bool = boolean(
        versions="4+", default=False, about="whether to ask only, and not to add the partitions"
    )
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, versions="4+", about="the partitions")


class AddPartitionsToTxnRequest(Request, key=24, versions="0-5", flexible="3+"):
    """Add partitions to transactions."""

    transactions: list[AddPartitionsToTxnTransaction] = array(
        AddPartitionsToTxnTransaction, versions="4+", default=(), about="the transactions"
    )
    v3_and_below_transactional_id: str = string(versions="0-3", default="", about="the transactional id")
    v3_and_below_producer_id: int = int64(
        versions="0-3", default=0, about="the producer id that the transactional id has"
    )
    v3_and_below_producer_epoch: int = int16(versions="0-3", default=0, about="the epoch of the producer id")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(
        AddPartitionsToTxnTopic, versions="0-3", default=(), about="the partitions"
    )


class AddPartitionsToTxnPartitionResult(Struct):
    """The result for one partition."""

    partition_index: int = int32(about="the partition")
    partition_error_code: int = int16(default=0, about="0, or why the partition is not in the transaction")


class AddPartitionsToTxnTopicResult(Struct):
    """The results for one topic."""

    name: str = string(about="the topic")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(
        AddPartitionsToTxnPartitionResult, about="one for each partition"
    )


class AddPartitionsToTxnResult(Struct):
    """The results for one transaction."""

    transactional_id: str = string(versions="4+", about="the transactional id")
    topic_results: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, versions="4+", about="one for each topic"
    )


class AddPartitionsToTxnResponse(Response, key=24, versions="0-5", flexible="3+"):
    """Which partitions are in their transaction."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    error_code: int = int16(versions="4+", default=0, ignorable=True, about="0, or why no transaction was looked at")
    results_by_transaction: list[AddPartitionsToTxnResult] = array(
        AddPartitionsToTxnResult, versions="4+", default=(), about="one for each transaction"
    )
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, versions="0-3", default=(), about="one for each topic"
    )


declare(AddPartitionsToTxnRequest, AddPartitionsToTxnResponse)
