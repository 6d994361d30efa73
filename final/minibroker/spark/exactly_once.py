"""The executor's half of the exactly-once sink: carries out the steps of `progress` on the brokers.

Each attempt at a task asks for the task's producer id again. This costs a request, but it fences every older attempt
at the same task. So if Spark takes an executor for dead and runs its task elsewhere, the old attempt cannot commit the
same rows a second time.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

import pyarrow as pa

from minibroker.client.errors import BrokerError, ClientError
from minibroker.clients import group_admin
from minibroker.clients.blocking import Client
from minibroker.clients.coordination import LOST_CONNECTION, NO_MEMBER, TRANSACTION, Coordinator, GroupCoordinator
from minibroker.clients.transacting import FEATURE, FENCING, Session
from minibroker.log.clock import precise_ms
from minibroker.segments.checkpoint import TopicPartition
from minibroker.spark.connecting import cached_client, forget_client
from minibroker.spark.errors import InvalidOption
from minibroker.spark.fingerprint import fingerprint
from minibroker.spark.options import ClientSettings
from minibroker.spark.progress import (
    WAY_OUT,
    Await,
    Begin,
    Commit,
    Committed,
    Done,
    Fingerprint,
    Look,
    Overtaken,
    Read,
    ReplayRefused,
    Ticket,
    Write,
    attempt,
    committed_of,
)
from minibroker.spark.writing import Delivery, Transaction, Writing, Written, binary, column
from minibroker.wire.codes import ErrorCode

OVERTAKEN = FENCING | {ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
"""The errors after which another attempt may have done the work."""

LOOK_AGAIN_S = 0.1
ABORT_MS_MAX = 2000


def write_once(
    rows: Iterator[pa.RecordBatch], delivery: Delivery, *, topic: str | None, ticket: Ticket
) -> tuple[Done, Written]:
    """Write the rows of a task in one transaction, or skip them if an earlier attempt has committed them."""
    first = next((it for it in rows if it.num_rows), None)
    writer = _Attempt(chain([] if first is None else [first], rows), delivery, topic=topic, ticket=ticket)
    try:
        done = writer.run(is_empty=first is None)
    except BaseException:
        writer.give_up()
        raise
    return done, writer.written


class _Attempt:
    """One attempt at a task."""

    def __init__(
        self, rows: Iterator[pa.RecordBatch], delivery: Delivery, *, topic: str | None, ticket: Ticket
    ) -> None:
        self._rows = self._counted(rows)
        self._delivery = delivery
        self._topic = topic
        self._ticket = ticket
        self._session = Session(ticket.name, delivery.transaction_timeout_ms)
        self._transaction: Transaction | None = None
        self._fingerprint = Fingerprint()
        self._begun_ms = 0.0
        self._can_abort = False
        self._connect()
        self.written = Written(0, 0)

    def _connect(self) -> None:
        self._client: Client = cached_client(self._delivery.client)
        self._coordinator = Coordinator(self._client.core, self._ticket.name, TRANSACTION)
        self._group = GroupCoordinator(self._client.core, self._ticket.name)

    def _counted(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            topics = None if self._topic is not None else column(batch, "topic")
            columns = column(batch, "headers"), topics, column(batch, "partition")
            counted = fingerprint(binary(batch, "key"), binary(batch, "value"), *columns)
            self._fingerprint = self._fingerprint.plus(counted)
            yield batch

    def run(self, *, is_empty: bool) -> Done:
        """Carry out the steps to the end."""
        steps = attempt(self._ticket, is_empty=is_empty)
        try:
            step = next(steps)
            while True:
                try:
                    answer = STEPS[type(step)](self, step)
                except BrokerError as error:
                    if error.code not in OVERTAKEN:
                        raise
                    step = steps.throw(self._overtaken(error))
                else:
                    step = steps.send(answer)
        except StopIteration as stop:
            done: Done = stop.value
            return done

    def give_up(self) -> None:
        """After an error, abort the transaction, so that readers of committed records need not wait for its timeout."""
        self._reconnect()
        if self._can_abort:
            with suppress(ClientError):
                self._client.run(self._session.end(self._coordinator, is_commit=False, timeout_ms=ABORT_MS_MAX))

    def _reconnect(self) -> None:
        # Responses may be pending on the old connections.
        forget_client(self._delivery.client)
        self._connect()

    # Steps ------------------------------------------------------------------------------------------------------------

    def _look(self, step: Look) -> Committed | None:
        return _progress(self._client, self._group, is_stable=step.is_stable)

    def _begin(self, _step: Begin) -> None:
        timeout_ms = self._delivery.delivery_timeout_ms
        try:
            self._client.run(self._session.init(self._coordinator, is_first=True, timeout_ms=timeout_ms))
        except BrokerError as error:
            if error.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise InvalidOption(
                    f"kafka.transaction.timeout.ms: {self._delivery.transaction_timeout_ms} is more than the brokers'"
                    " transaction.max.timeout.ms"
                ) from None
            raise
        node_id = self._coordinator.node_id
        assert node_id is not None, "the coordinator has just answered"
        self._session.version = self._client.link(node_id).level_of(FEATURE)
        self._transaction = Transaction(self._client, self._session, self._coordinator, timeout_ms=timeout_ms)

    def _write(self, _step: Write) -> Fingerprint:
        self._begun_ms, self._can_abort = precise_ms(), True
        writing = Writing(self._client, self._delivery, topic=self._topic, transaction=self._transaction)
        for batch in self._rows:
            writing.add(batch)
        self.written = writing.finish()
        return self._fingerprint

    def _commit(self, step: Commit) -> None:
        assert self._transaction is not None
        timeout_ms = self._delivery.delivery_timeout_ms
        offsets = {TopicPartition(topic, 0): step.progress.next_batch for topic in self._transaction.topics}
        send_offsets = self._session.send_offsets(
            self._coordinator,
            self._group,
            offsets,
            NO_MEMBER,
            timeout_ms=timeout_ms,
            metadata=step.progress.metadata(),
        )
        self._client.run(send_offsets)
        # From here on the commit may succeed even if this task gets an error.
        self._can_abort = False
        self._client.run(self._session.end(self._coordinator, is_commit=True, timeout_ms=timeout_ms))

    def _read(self, _step: Read) -> Fingerprint:
        for _batch in self._rows:
            pass
        return self._fingerprint

    def _await(self, _step: Await) -> Committed | None:
        """Look until the other attempt has committed, or for so long that its transaction has timed out, too."""
        self._reconnect()
        deadline_ms = precise_ms() + (0 if self._is_late else self._delivery.transaction_timeout_ms)
        while True:
            found = _progress(self._client, self._group, is_stable=False)
            if (found is not None and found.next_batch > self._ticket.batch_id) or precise_ms() >= deadline_ms:
                return found
            time.sleep(LOOK_AGAIN_S)

    # Errors -----------------------------------------------------------------------------------------------------------

    @property
    def _is_late(self) -> bool:
        return precise_ms() - self._begun_ms >= self._delivery.transaction_timeout_ms

    def _overtaken(self, error: BrokerError) -> Overtaken:
        self._can_abort = False
        if not self._is_late:
            return Overtaken(f"{self._ticket}: another attempt has taken over and has not committed ({error})")
        seconds = (precise_ms() - self._begun_ms) / 1000
        return Overtaken(
            f"{self._ticket}: the task took {seconds:.0f} s, more than kafka.transaction.timeout.ms, which is"
            f" {self._delivery.transaction_timeout_ms}, so the brokers aborted its transaction;"
            " set a longer timeout, or make batches smaller with maxOffsetsPerTrigger"
        )


STEPS: dict[type, Callable[[_Attempt, Any], Any]] = {
    Look: _Attempt._look,
    Begin: _Attempt._begin,
    Write: _Attempt._write,
    Commit: _Attempt._commit,
    Read: _Attempt._read,
    Await: _Attempt._await,
}


def _progress(client: Client, group: GroupCoordinator, *, is_stable: bool) -> Committed | None:
    """Return the newest progress: each topic that the task has written to keeps a copy."""
    positions = client.run(group.positions(is_stable=is_stable)).values()
    newest = max(positions, default=None)
    return None if newest is None else committed_of(group.group_id, *newest)


# The driver ---------------------------------------------------------------------------------------------------------


def demand_no_others(settings: ClientSettings, tickets: list[Ticket]) -> None:
    """Refuse a batch if other Spark partitions than these have committed rows of it before a restart.

    Their rows are in the topic, and rows of this run may repeat them. A task cannot see this, because it does not know
    how many tasks there are. Only the first batch of a run can have been begun by an earlier run.
    """
    ours = {it.name for it in tickets}
    batch = tickets[0]
    for group_id, found in _progress_of_all(settings, batch.query).items():
        if group_id not in ours and found.next_batch > batch.batch_id:
            raise ReplayRefused(
                f"batch {batch.batch_id} of query {batch.query_id} has {len(tickets)} Spark partitions now, but"
                f" {found.fingerprint.row_count} rows of another one ({group_id}) were committed before; {WAY_OUT}"
            )


def _progress_of_all(settings: ClientSettings, prefix: str) -> dict[str, Committed]:
    """Return the progress of every Spark partition of a query; ask again while a node has just died."""
    deadline_ms = precise_ms() + settings.timeout_ms
    while True:
        client = cached_client(settings)
        try:
            names = [it.group_id for it in group_admin.list_groups(client) if it.group_id.startswith(prefix)]
            found = {it: _progress(client, GroupCoordinator(client.core, it), is_stable=True) for it in names}
            return {name: it for name, it in found.items() if it is not None}
        except LOST_CONNECTION:
            if precise_ms() >= deadline_ms:
                raise
            forget_client(settings)
            time.sleep(settings.backoff_ms / 1000)
