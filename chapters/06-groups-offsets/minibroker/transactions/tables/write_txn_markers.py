"""WriteTxnMarkers (key 27): writes the outcome of transactions into their partitions. A pure module.

The transaction coordinator sends it to the leaders of the partitions. Version 2 names the transaction version.
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int8, int16, int32, int64, string


class WritableTxnMarkerTopic(Struct):
    """Partitions of one topic."""

    name: str = string(about="the topic")
    partition_indexes: list[int] = array(int32, about="its partitions")


class WritableTxnMarker(Struct):
    """The outcome of one transaction, and where to write it."""

    producer_id: int = int64(about="the producer id of the transaction")
    producer_epoch: int = int16(about="the epoch of the producer id")
    transaction_result: bool = boolean(about="true if the transaction commits, false if it aborts")
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic, about="the partitions")
    coordinator_epoch: int = int32(about="the leader epoch of the coordinator's partition of the transaction state")
    transaction_version: int = int8(
        versions="2+", default=0, ignorable=True, about="the transaction version of the producer: 0, 1 or 2"
    )


class WriteTxnMarkersRequest(Request, key=27, versions="1-2", flexible="1+"):
    """Write markers."""

    markers: list[WritableTxnMarker] = array(WritableTxnMarker, about="the markers")


class WritableTxnMarkerPartitionResult(Struct):
    """The result for one partition."""

    partition_index: int = int32(about="the partition")
    error_code: int = int16(default=0, about="0, or why the marker was not written")


class WritableTxnMarkerTopicResult(Struct):
    """The results for one topic."""

    name: str = string(about="the topic")
    partitions: list[WritableTxnMarkerPartitionResult] = array(
        WritableTxnMarkerPartitionResult, about="one for each partition"
    )


class WritableTxnMarkerResult(Struct):
    """The results for one marker."""

    producer_id: int = int64(about="the producer id of the transaction")
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult, about="one for each topic")


class WriteTxnMarkersResponse(Response, key=27, versions="1-2", flexible="1+"):
    """Which markers are written and replicated."""

    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult, about="one for each marker")


declare(WriteTxnMarkersRequest, WriteTxnMarkersResponse)
