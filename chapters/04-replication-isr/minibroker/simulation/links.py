"""A client's connection to a node, which keeps the order of messages and breaks as TCP does. A pure module.

Requests arrive in the order in which they were sent, and so do the answers. When the link breaks, the first requests
under way may still arrive; the later requests and all answers are lost. The client cannot tell which requests arrived:
that is why producers number their batches.

A cut loses messages, and TCP would repeat a lost message before any later one. So after a lost message nothing arrives
on the link any more, and the client has to close the link.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from minibroker.simulation.network import Network
from minibroker.simulation.process import Process
from minibroker.simulation.scheduler import Timer

Reply = Callable[[Any], None]


class _Way:
    """One direction of a link: messages arrive in order, or not at all."""

    def __init__(self, network: Network, source: Process, target: Process) -> None:
        self._network = network
        self._source = source
        self._target = target
        self._last_ms = 0
        self._is_stalled = False
        self.under_way: deque[tuple[Timer, int]] = deque()

    def send(self, message: object, deliver: Callable[[], None]) -> None:
        network = self._network
        number = network.trace.sent(self._source.name, self._target.name, message)
        if self._is_stalled or network.is_cut(self._source.name, self._target.name):
            self._is_stalled = True
            network.trace.lost(number, "the link is cut")
            return
        now_ms = network.scheduler.now_ms
        self._last_ms = max(self._last_ms, now_ms + network.delay_ms(self._source.name, self._target.name))

        def arrive() -> None:
            self.under_way.popleft()
            if self._target.is_alive:
                network.trace.arrived(number)
                self._target.run(deliver)
            else:
                network.trace.lost(number, f"{self._target.name} is down")

        self.under_way.append((network.scheduler.after(self._last_ms - now_ms, arrive), number))

    def break_after(self, count: int) -> None:
        """Let the first `count` messages under way arrive. All others are lost."""
        while len(self.under_way) > count:
            timer, number = self.under_way.pop()
            timer.cancel()
            self._network.trace.lost(number, "the link broke")
        self._is_stalled = True


class Link:
    """A connection from a client to a server. It ends when the server's process ends.

    `serve(request, reply)` runs at the server, `on_answer(answer)` and `on_broken()` at the client.
    """

    def __init__(
        self,
        network: Network,
        client: Process,
        server: Process,
        *,
        serve: Callable[[Any, Reply], None],
        on_answer: Callable[[Any], None],
        on_broken: Callable[[], None],
    ) -> None:
        self.client = client
        self.server = server
        self.is_open = True
        self._network = network
        self._serve = server.in_this_life(serve)
        self._on_answer = on_answer
        self._on_broken = on_broken
        self._requests = _Way(network, client, server)
        self._answers = _Way(network, server, client)

    def send(self, request: object) -> None:
        """Send a request."""
        if self.is_open:
            self._requests.send(request, lambda: self._arrive(request))

    def _arrive(self, request: object) -> None:
        if self._network.is_admitted(self.client, request):
            self._serve(request, self._reply)

    def break_off(self) -> None:
        """Break the link: the client notices at once, and the server finishes the requests that reach it."""
        if not self.is_open:
            return
        self.is_open = False
        arriving = self._network.chance.randrange(len(self._requests.under_way) + 1) if self.server.is_alive else 0
        self._requests.break_after(arriving)
        self._answers.break_after(0)
        self.client.after(0, self._on_broken)

    def _reply(self, answer: object) -> None:
        if self.is_open:
            self._answers.send(answer, lambda: self._heard(answer))

    def _heard(self, answer: object) -> None:
        if self.is_open:
            self._on_answer(answer)
