"""A machine of a world as the broker sees it: its disk is watched, and its requests pass the access table.

The code is the broker's: `WatchedFiles` notices the first error of a disk and refuses all changes after it, and
`loses_records` says whether the node may still count as complete. The broker ends after that error, and a supervisor
starts it again; so does this machine.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, ClassVar

from minibroker.log.errors import LogError
from minibroker.partitions import access
from minibroker.partitions.access import Access, Gate
from minibroker.partitions.errors import Disconnect, Refused
from minibroker.partitions.rare_warning import RareWarning
from minibroker.partitions.registry import Call, Session
from minibroker.replicas import disk
from minibroker.replicas.access import CONTROLLER_ROWS, REPLICA_ROWS
from minibroker.replicas.disk import FULL_DISK_ERRORS, WatchedFiles
from minibroker.simulation.cluster import ClusterWorld
from minibroker.simulation.faults import Fault
from minibroker.simulation.host import DISK_FAILED, DISK_FULL, DISK_UNREADABLE, Host
from minibroker.simulation.links import Reply
from minibroker.simulation.process import Process
from minibroker.simulation.scheduler import Action
from minibroker.wire.apis import ApiKey
from minibroker.wire.headers import RequestHeader
from minibroker.wire.schema import Request, Response
from minibroker.wire.tables.api_versions import ApiVersionsResponse

END_MS_MAX = 20
SUPERVISOR_MS = 700
PROBE = "flush-probe"
FORGE_MS = 60

STRANGER = "stranger"
STRANGER_REFUSED = "stranger refused"


class Machine(Host):
    """A host with watched files."""

    files: WatchedFiles
    _has_lost_pages = False

    def start(self) -> None:
        """Start the process with the broker's view of the disk. A node that cannot read or write its disk ends."""
        if not self.process.is_alive and not self.is_off:
            self._has_lost_pages = False
            self.files = WatchedFiles(self._on_disk_failed, self.disk)
            self.process.is_expected = self._is_expected
            super().start()
            if self.files.watch.failure is not None:
                self._end_by_disk()

    def _is_expected(self, error: Exception) -> bool:
        return self.files.watch.failure is not None and isinstance(error, LogError | OSError | Refused)

    def _on_disk_failed(self, what: str, error: OSError) -> None:
        is_full = error.errno in FULL_DISK_ERRORS
        is_read = what.startswith("read")
        self.world.states.reach(DISK_FULL if is_full else DISK_UNREADABLE if is_read else DISK_FAILED)
        # The rule is looked up in its module, so that a planted bug can replace it.
        if disk.loses_records(what, error):
            self.forget_epoch()
            self._has_lost_pages = not is_full
        # The node ends after the event in which the disk has failed, as the broker's event loop does it.
        self.process.after(self.chance.randrange(END_MS_MAX), self._end_by_disk)

    def _end_by_disk(self) -> None:
        if self.process.is_alive:
            self.kill()
            self.world.scheduler.after(SUPERVISOR_MS, self.start)

    def leave_pages(self) -> None:
        """After a failed flush the page cache is not trusted: the machine is booted again."""
        if self._has_lost_pages:
            self.cut_power()
        else:
            super().leave_pages()

    def flush(self) -> None:
        if self.process.is_alive and self.files.watch.failure is None:
            self.process.run(self._probe)
        if self.process.is_alive and self.files.watch.failure is not None:
            self._end_by_disk()

    def _probe(self) -> None:
        self.files.open(PROBE).fsync()

    @contextmanager
    def readable(self) -> Iterator[None]:
        """A checker reads the files of the node, even while the disk fails to read."""
        files = self.disk._files
        error, files.read_error = files.read_error, None
        try:
            yield
        finally:
            files.read_error = error


# Access ---------------------------------------------------------------------------------------------------------------


_SILENT = logging.Logger("strangers", logging.CRITICAL)
_PASSED = ApiVersionsResponse(error_code=0, api_keys=[])

Wire = Mapping[type, Callable[[Any], Request]]
"""How each message of a world looks on the wire, as far as the access table reads it."""


class AccessTable:
    """The broker's access table, before every handler of a world."""

    def __init__(self, rows: Mapping[ApiKey, Access], wire: Wire, reach: Callable[[str], None]) -> None:
        gate = Gate({}, is_joined=True, is_open=True)
        gate._warning = RareWarning(_SILENT)
        self._guards = {int(key): gate.guard(row, _pass) for key, row in rows.items()}
        self._headers: dict[tuple[int, str], RequestHeader] = {}
        self._wire = wire
        self._reach = reach

    def admits(self, source: Process, message: object) -> bool:
        """Whether a message may be served. The connection of a node has proved which node it is."""
        request = self._wire[type(message)](message)
        key = request.schema.key
        assert key is not None
        header = self._headers.get((key, source.name))
        if header is None:
            header = self._headers[key, source.name] = RequestHeader(key, 0, 0, source.name)
        try:
            answer = self._guards[key](Call(request, 0, header, 0, session_of(source.name)))
        except Disconnect:
            answer = None
        if answer is not _PASSED:
            assert source.name == STRANGER, f"{source.name} may not send {message}"
            self._reach(STRANGER_REFUSED)
        return answer is _PASSED


class GuardedWorld(ClusterWorld):
    """A world whose requests pass the access table; a stranger sends some, too."""

    ROWS: ClassVar[Mapping[ApiKey, Access]] = {**access.ROWS, **REPLICA_ROWS, **CONTROLLER_ROWS}
    """The access table of the nodes."""
    WIRE: ClassVar[Wire] = {}

    def __init__(self, seed: int, *, faults: Sequence[Fault] | None = None, is_traced: bool = False) -> None:
        super().__init__(seed, faults=faults, is_traced=is_traced)
        self.stranger = Process(self.scheduler, self.trace, STRANGER)
        self.stranger.start()
        self.network.admits = AccessTable(self.ROWS, self.WIRE, lambda name: self.states.reach(name)).admits

    def forgeries(self) -> list[Callable[[int], None]]:
        """What a stranger may send. The number selects the node for which it claims to act."""
        return []

    def forge(self, target: Process, message: object, serve: Callable[[Reply], None]) -> None:
        """Send a message of the stranger."""
        self.network.ask(self.stranger, target, message, serve, lambda _answer: None)

    def on_forge(self, fault: Fault) -> Action:
        """A stranger pretends to be a node, again and again: only the access table protects the cluster."""
        kind, number = map(int, fault.arguments)
        forge = self.forgeries()[kind % len(self.forgeries())]
        timer = self.scheduler.after(0, lambda: None)

        def send() -> None:
            nonlocal timer
            forge(number)
            timer = self.scheduler.after(FORGE_MS, send)

        send()
        return lambda: timer.cancel()


def _pass(_call: Call[Any]) -> Response:
    return _PASSED


@lru_cache
def session_of(name: str) -> Session:
    kind, _dash, number = name.partition("-")
    return Session(f"{name}:1", node_id=int(number) if kind == "node" and number.isdigit() else None)
