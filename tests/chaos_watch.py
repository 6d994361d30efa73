"""Deadlines for the phases of `chaos`, and what there is to see when one has passed.

A client that waits for ever, or a cluster that does not come back, must not end as a run that says nothing. Each phase
has a deadline. When it has passed, or when a wait inside a phase has failed, the stacks of all threads of this process
and the state of each node are printed. The nodes write their own stacks to their logs (`failing_disk`).
"""

import faulthandler
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator

from failing_nodes import FailingCluster, FailingNode

from minibroker.bench.watching import ASK_MS_MAX
from minibroker.client.errors import ClientError
from minibroker.clients.admin import list_reassignments
from minibroker.clients.blocking import Client

_WORDS_MAX = 15
# How much longer a process lives whose threads cannot even print what they do.
_GRACE_S = 60.0


class Watch:
    """The deadline of the current phase. When it has passed, `on_expired` is called on a thread of its own.

    With `is_last`, the nodes are killed and the process ends after that, although other threads of it may wait for
    ever. A thread that keeps Python's lock delays this by a minute.
    """

    def __init__(self, say: Callable[[str], None], on_expired: Callable[[str], None], *, is_last: bool = False) -> None:
        self._say = say
        self._on_expired = on_expired
        self._is_last = is_last
        self._cluster: FailingCluster | None = None
        self._timer: threading.Timer | None = None

    def look_at(self, cluster: FailingCluster) -> None:
        """From now on, describe the nodes of this cluster."""
        self._cluster = cluster

    def begin(self, phase: str, seconds: float) -> None:
        """A phase begins, and the one before has ended."""
        self.end()
        self._timer = threading.Timer(seconds, self._expire, [phase, seconds])
        self._timer.daemon = True
        self._timer.start()
        if self._is_last:
            faulthandler.dump_traceback_later(seconds + _GRACE_S, exit=True)

    def end(self) -> None:
        """The last phase has ended."""
        if self._timer is not None:
            self._timer.cancel()
        if self._is_last:
            faulthandler.cancel_dump_traceback_later()

    def describe(self) -> None:
        """Print the stacks of all threads and the state of each node."""
        for line in stacks():
            self._say(line)
        for node in self._nodes():
            node.dump_stacks()
        for line in [] if self._cluster is None else states(self._cluster):
            self._say(line)

    def _expire(self, phase: str, seconds: float) -> None:
        found = f"{phase}: not over after {seconds:g} s"
        self._say(found)
        self.describe()
        self._on_expired(found)
        if self._is_last:
            for node in self._nodes():
                node.kill()
            os._exit(1)

    def _nodes(self) -> list[FailingNode]:
        return [] if self._cluster is None else list(self._cluster.nodes.values())


def stacks() -> Iterator[str]:
    """The stack of each thread of this process."""
    names = {it.ident: it.name for it in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        yield f"stack of the thread {names.get(ident, ident)}:"
        yield "".join(traceback.format_stack(frame)).rstrip()


def states(cluster: FailingCluster) -> Iterator[str]:
    """What each node reports about the quorum, the moves and every partition, and the end of its log."""
    for number, node in cluster.nodes.items():
        yield f"node {number}: {'runs' if node.is_alive() else 'has ended'}"
        if node.is_alive():
            yield from _reported(cluster, number)
        yield from (f"    log: {it}" for it in node.last_words()[-_WORDS_MAX:])


def _reported(cluster: FailingCluster, number: int) -> Iterator[str]:
    quorum = cluster.quorum(at=number)
    if quorum is None:
        yield "    quorum: no answer"
    else:
        ends = {it.replica_id: it.log_end_offset for it in (*quorum.current_voters, *quorum.observers)}
        yield f"    quorum: leader {quorum.leader_id}, epoch {quorum.leader_epoch}, log ends {ends}"
    try:
        with Client(cluster.asked_at(number), timeout_ms=ASK_MS_MAX) as client:
            for topic in client.metadata(None).topics:
                for it in topic.partitions:
                    who = f"leader {it.leader_id}, epoch {it.leader_epoch}, replicas {list(it.replica_nodes)}"
                    yield f"    {topic.name}-{it.partition_index}: {who}, in sync {list(it.isr_nodes)}"
            for name, move in list_reassignments(client).items():
                yield f"    {name.directory} moves: {move}"
    except ClientError as error:
        yield f"    metadata: {error}"
