"""A real broker process for tests: started, awaited, watched, killed, stopped, started again.

`minibroker.bench.launcher` runs the process. The tests demand more: it stops with exit code 0 and logs no traceback.

`MINIBROKER_TEST_BOOTSTRAP=HOST:PORT` puts a broker that runs already in the place of the shared one; tests that need
settings of their own are then skipped. `MINIBROKER_TEST_SERVE=PROGRAM` puts another program in the place of
`minibroker`, called with the same arguments: `PROGRAM serve --data DIR --listen HOST:PORT --set k=v`. So the suite
can run against another broker.
"""

import itertools
import os
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from minibroker.bench.launcher import ANY_PORT, Server, resident_bytes, serve_command
from minibroker.bench.watching import until
from minibroker.clients.admin import ResourceType
from minibroker.clients.blocking import Client
from minibroker.clients.dialogues import ask_controller, raise_errors
from minibroker.wire.tables.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource

BOOTSTRAP = os.environ.get("MINIBROKER_TEST_BOOTSTRAP", "")
SERVE = os.environ.get("MINIBROKER_TEST_SERVE", "")
IS_OURS = not (BOOTSTRAP or SERVE)
# A Java process ends with exit code 128 + 15 after SIGTERM; ours ends with 0.
STOPPED_CODES = (0,) if IS_OURS else (0, 128 + signal.SIGTERM)
# Retention and compaction on a schedule that a test can wait for.
QUICK_UPKEEP = ("log.retention.check.interval.ms=200", "log.cleaner.backoff.ms=200")

eventually = until
_numbers = itertools.count()


def unique(prefix: str) -> str:
    """A topic name that no other test has, in this run, in a parallel one or in the one before."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}-{time.time_ns():x}"


def replace_configs(client: Client, topic: str, configs: Mapping[str, str]) -> None:
    """Make these the only values of a topic that are set. Our own client does not offer this old request."""
    values = [AlterableConfig(name=key, value=value) for key, value in configs.items()]
    resource = AlterConfigsResource(resource_type=ResourceType.TOPIC, resource_name=topic, configs=values)
    request = AlterConfigsRequest(resources=[resource], validate_only=False)
    response = client.run(ask_controller(client.core, request, lambda it: [one.error_code for one in it.responses]))
    raise_errors({f"topic {it.resource_name}": (it.error_code, it.error_message) for it in response.responses})


class Broker(Server):
    """One broker process with its settings."""

    ready_s_max = 20.0 if IS_OURS else 90.0
    stopped_s_max = 20.0

    def __init__(
        self, data: Path, settings: Sequence[str] = (), *, listen: str = ANY_PORT, open_files_max: int | None = None
    ) -> None:
        super().__init__(lambda address: self.command(address), data, address=listen)
        self.data = data
        self.settings = tuple(settings)
        self._open_files_max = open_files_max

    def command(self, listen: str) -> list[str]:
        command = serve_command(*self.settings, data=self.data, listen=listen)
        if SERVE:
            command = [*shlex.split(SERVE), *command[command.index("serve") :]]
        if self._open_files_max is not None:
            command = ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(self._open_files_max), *command]
        return command

    def resident_bytes(self) -> int:
        """Memory that the process holds now."""
        return resident_bytes(self.pid)

    def complaints(self) -> str:
        """The first traceback in the log: a client never causes one."""
        log = self.log() if IS_OURS else ""
        found = log.find("Traceback (most recent call last)")
        return log[found : found + 4000] if found >= 0 else ""

    def stop(self) -> None:
        """A controlled shutdown, which ends with success and without a traceback."""
        super().stop()
        code = self.await_end()
        assert code in STOPPED_CODES, f"stopped with exit code {code}:\n{self.log()[-4000:]}"
        assert not self.complaints(), self.complaints()


class ForeignBroker(Broker):
    """A broker that was started elsewhere: it has no process here and cannot be stopped."""

    def __init__(self, address: str) -> None:
        super().__init__(Path(), listen=address)

    def is_alive(self) -> bool:
        return True

    def resident_bytes(self) -> int:
        return 0


def start_broker(data: Path, *settings: str, listen: str = ANY_PORT, open_files_max: int | None = None) -> Broker:
    """Starts a broker on a directory of its own and waits until it says that it is ready."""
    broker = Broker(data, settings, listen=listen, open_files_max=open_files_max)
    broker.start()
    return broker


StartBroker = Callable[..., Broker]
"""What the fixture `start` gives: `start("auto.create.topics.enable=false")`."""
