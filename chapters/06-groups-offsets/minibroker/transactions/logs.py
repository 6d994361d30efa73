"""The transactions in the logs of one node. A pure module.

`TransactionLogs` is a part of the node, and two of its methods are arguments for chapter 04's `Hosted`:

    logs = TransactionLogs(machine.waiting.wake, verifier=…, offsets=…, ongoing=…)
    hosted = Hosted(…, rules_for=logs.rules_for, open_transactions=logs.open_transactions)
    node = Node(machine, member, partitions, [hosted, …, logs])

`rules_for` has the admission rules of topics that clients write to. Only coordinators write to internal topics, which
have other rules.
"""

from collections.abc import Callable, Hashable, Mapping
from weakref import WeakValueDictionary

from minibroker.log.interfaces import Files
from minibroker.partitions.access import Access, Place
from minibroker.partitions.admission import Rules
from minibroker.partitions.producers import ProducerStates
from minibroker.partitions.registry import Registry
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.marking import OffsetsMarkers, Ongoing, Partitions, WriteTxnMarkers
from minibroker.transactions.state import TransactionLog
from minibroker.transactions.verifying import Verifier, rules_for_transactions
from minibroker.wire.apis import ApiKey


class TransactionLogs:
    """The transactions of all partitions of a node."""

    rows: Mapping[ApiKey, Access] = {
        # The handler itself refuses markers that a client may not write.
        ApiKey.WRITE_TXN_MARKERS: Access((Place.LEADER,)),
    }

    def __init__(
        self,
        wake: Callable[[Hashable], None],
        *,
        verifier: Verifier,
        offsets: OffsetsMarkers,
        ongoing: Ongoing,
        is_verifying: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_verifying` is transaction.partition.verification.enable."""
        self._is_verifying = is_verifying
        self._wake = wake
        self._verifier = verifier
        self._offsets = offsets
        self._ongoing = ongoing
        # A deleted partition must not be kept alive from here.
        self._logs: WeakValueDictionary[TopicPartition, TransactionLog] = WeakValueDictionary()

    def open_transactions(
        self,
        name: TopicPartition,
        files: Files,
        directory: str,
        producers: ProducerStates,
        high_watermark: Callable[[], int],
    ) -> TransactionLog:
        """Open the transactions of a partition, before its log is opened."""
        found = self._logs[name] = TransactionLog(files, directory, producers, high_watermark, wake=self._wake)
        return found

    def rules_for(self, name: TopicPartition) -> Rules:
        """The admission rules of a partition whose transactions were opened."""
        return rules_for_transactions(name, self._logs[name], self._verifier, self._is_verifying)

    # A part of the node -----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Nothing is to be opened."""

    def add_handlers(self, registry: Registry, store: Partitions) -> None:
        """Add the handler of WriteTxnMarkers."""
        handler = WriteTxnMarkers(store, self._offsets, self._ongoing, wake=self._wake)
        registry.add(ApiKey.WRITE_TXN_MARKERS, handler)

    def start(self) -> None:
        """Nothing is to be started."""

    async def stop(self) -> None:
        """Nothing is to be stopped."""
