"""The steps of a task that writes exactly once, and its decision to write, to skip or to refuse. A pure module.

The transaction of a task holds its rows and, as the offset of a group, the number of the next batch. The fingerprint
of the rows is committed as the metadata of that offset. Each Spark partition has its own transactional id and its own
group, both with the name of its `Ticket`. An attempt takes these steps:

    Look     if this batch is committed already, read the rows, compare the fingerprint, and skip them
    Begin    fence older attempts; the broker aborts what they left open
    Look     an older attempt may have committed in the meantime
    Write    send the rows
    Commit   rows and progress together

An attempt that was itself fenced reads the remaining rows and looks again. If the other attempt has committed the same
rows, the work is done. `attempt` yields the steps; `exactly_once` carries them out, and a test interleaves them.
"""

import enum
import json
from collections.abc import Generator
from typing import Any, NamedTuple, TypeAlias

from minibroker.spark.errors import ConnectorError

_HASHES = 2**64


class ReplayRefused(ConnectorError):
    """A batch that was written before has other rows now, so it can be neither skipped nor written."""


class Overtaken(ConnectorError):
    """The transaction of this attempt is over: another attempt has fenced it, or it took too long."""


class Ticket(NamedTuple):
    """The identity of a task: its query, its batch and its Spark partition; each start of a query has a new run id."""

    prefix: str
    query_id: str
    run_id: str
    batch_id: int
    partition: int

    @property
    def query(self) -> str:
        """The prefix of the names of all tasks of the query."""
        return f"{self.prefix}-{self.query_id}-"

    @property
    def name(self) -> str:
        """The transactional id of the task, which is also the name of its group."""
        return f"{self.query}{self.partition}"

    def __str__(self) -> str:
        return f"batch {self.batch_id} of query {self.query_id}, Spark partition {self.partition}"


class Fingerprint(NamedTuple):
    """The number of rows, and the sum of their hashes, which does not depend on their order."""

    row_count: int = 0
    digest: int = 0

    def plus(self, other: "Fingerprint") -> "Fingerprint":
        """The fingerprint of both sets of rows together."""
        return Fingerprint(self.row_count + other.row_count, (self.digest + other.digest) % _HASHES)


class Committed(NamedTuple):
    """The progress of one Spark partition, as it was committed with the rows of its last batch."""

    next_batch: int
    fingerprint: Fingerprint
    run_id: str = ""

    def metadata(self) -> str:
        """The metadata text that is committed with the offset."""
        rows, digest = self.fingerprint
        return json.dumps({"rows": rows, "hash": f"{digest:016x}", "run": self.run_id})


def committed_of(group_id: str, next_batch: int, metadata: str) -> Committed:
    """Read an offset and its text; refuse what this sink cannot have written."""
    try:
        told = json.loads(metadata)
        return Committed(next_batch, Fingerprint(int(told["rows"]), int(told["hash"], 16)), str(told["run"]))
    except (ValueError, TypeError, KeyError):
        raise ReplayRefused(
            f"group {group_id} has an offset that this sink did not write: set another transactionalIdPrefix"
        ) from None


# The decision -------------------------------------------------------------------------------------------------------


class Decision(enum.Enum):
    """What to do with the rows of a task."""

    WRITE = "no attempt has committed them"
    COMPARE = "some attempt has committed this batch: skip the rows if they are the same"


def decide(ticket: Ticket, found: Committed | None) -> Decision:
    """Decide from the progress that was found; refuse a batch that is older than this progress."""
    if found is None or found.next_batch <= ticket.batch_id:
        return Decision.WRITE
    if found.next_batch > ticket.batch_id + 1:
        raise ReplayRefused(
            f"{ticket}: batch {found.next_batch - 1} is in the topic already, so the checkpoint is out of date: use the"
            " newest copy of it, or a new checkpoint, which writes the rows again"
        )
    return Decision.COMPARE


def demand_same(ticket: Ticket, found: Committed, rows: Fingerprint) -> None:
    """Refuse a batch whose rows are not those that were committed."""
    if rows == found.fingerprint:
        return
    had = found.fingerprint.row_count
    what = f"{rows.row_count} rows" if rows.row_count != had else f"{had} other rows"
    raise ReplayRefused(f"{ticket}: {had} rows are committed, and the same batch has {what} now; {WAY_OUT}")


WAY_OUT = (
    "it is partitioned differently. Restart the query with its old options and code, and change them after this batch"
    " is done; or let the batch pass with delivery=at-least-once, which may write its rows twice"
)


# The steps ----------------------------------------------------------------------------------------------------------


class Look(NamedTuple):
    """Find the progress; if it must be stable, wait until open transactions have ended."""

    is_stable: bool


class Begin(NamedTuple):
    """Fence older attempts, and abort what they left open."""


class Write(NamedTuple):
    """Send all rows; the answer is their fingerprint."""


class Commit(NamedTuple):
    """Commit the rows together with this progress."""

    progress: Committed


class Read(NamedTuple):
    """Read the rows that are left, without writing them; the answer is the fingerprint of all rows."""


class Await(NamedTuple):
    """Look until another attempt has committed this batch, for a limited time."""


Step: TypeAlias = Look | Begin | Write | Commit | Read | Await


class Done(NamedTuple):
    """The result of an attempt: whether it wrote rows, and whether an earlier batch of this run had written some."""

    fingerprint: Fingerprint
    is_written: bool
    is_known_run: bool


def attempt(ticket: Ticket, *, is_empty: bool) -> Generator[Step, Any, Done]:
    """Yield the steps of an attempt. The steps Write and Commit may raise `Overtaken`."""
    found: Committed | None = yield Look(is_stable=False)
    if decide(ticket, found) is Decision.WRITE and not is_empty:
        yield Begin()
        found = yield Look(is_stable=True)
    is_known_run = found is not None and found.run_id == ticket.run_id
    if decide(ticket, found) is Decision.WRITE:
        if is_empty:
            return Done(Fingerprint(), is_written=False, is_known_run=is_known_run)
        try:
            rows: Fingerprint = yield Write()
            yield Commit(Committed(ticket.batch_id + 1, rows, ticket.run_id))
            return Done(rows, is_written=True, is_known_run=is_known_run)
        except Overtaken:
            rows = yield Read()
            found = yield Await()
            if decide(ticket, found) is Decision.WRITE:
                raise
    else:
        rows = yield Read()
    assert found is not None, "only progress is compared"
    demand_same(ticket, found, rows)
    return Done(rows, is_written=False, is_known_run=is_known_run)
