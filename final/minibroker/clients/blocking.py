"""The blocking transport: one socket per node, every call with a deadline.

A `Client` is for one thread, and has one request in flight at a time. Producers and consumers need more. They use
the `Link` of each node, and wait for several links together.
"""

import random
import select
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, TypeVar

from minibroker.client.addresses import Address
from minibroker.client.connection import Authenticator, Connection
from minibroker.client.errors import (
    BrokerUnavailable,
    ClientClosed,
    ClientError,
    ConnectionLost,
    RequestTimedOut,
    TurnedAway,
)
from minibroker.client.reasons import FULL_HINT, no_broker, unanswered, why
from minibroker.clients.core import CONTROLLER, Ask, ClientConfig, Core, Dialogue
from minibroker.clients.dialogues import partition_count
from minibroker.clients.retries import RetryPolicy
from minibroker.clients.routing import parse_addresses
from minibroker.log.clock import precise_ms
from minibroker.log.interfaces import FileSlice
from minibroker.wire.schema import Part, Request
from minibroker.wire.tables.metadata import MetadataResponse

__all__ = ["CONTROLLER", "Client", "Link", "connect"]

T = TypeVar("T")
OpenSocket = Callable[[Address, float], socket.socket]
"""Opens a connection, given an address and a timeout in seconds; TLS can be added with another such function."""

_JOIN_BYTES_MAX = 32 * 1024  # a request up to this size is copied into one buffer, which is cheaper
_PARTS_MAX = 64


def connect(address: Address, timeout: float) -> socket.socket:
    """Open a plain connection."""
    opened = socket.create_connection(address, timeout)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


class Link:
    """One socket and its connection: responses arrive in the order of the requests."""

    def __init__(self, address: Address, config: ClientConfig, *, open_socket: OpenSocket = connect) -> None:
        self.address = address
        self._has_answered = False
        self._connection = Connection(
            client_id=config.client_id,
            peer=str(address),
            response_bytes_max=config.response_bytes_max,
            authenticator=config.authenticator,
        )
        deadline_ms = precise_ms() + config.connect_timeout_ms
        try:
            self._socket = open_socket(address, config.connect_timeout_ms / 1000)
        except OSError as error:
            raise BrokerUnavailable(f"no broker answers at {address} ({why(error)})") from error
        try:
            self._socket.setblocking(False)
            self._poll = select.poll()
            self._greet(deadline_ms)
        except BaseException:
            self._socket.close()
            raise

    def _greet(self, deadline_ms: float) -> None:
        while not self._connection.is_ready:
            self._write(self._connection.greeting(), deadline_ms)
            try:
                self.receive(deadline_ms)
            except RequestTimedOut as error:
                raise BrokerUnavailable(
                    f"{self.address} accepts connections but does not answer: is it a broker?"
                ) from error
            except ConnectionLost as error:
                raise TurnedAway(self.address) from error

    def fileno(self) -> int:
        """The file descriptor, so that a selector can wait for many links."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def version_of(self, api_key: int) -> int:
        """The version of an API that this link uses."""
        return self._connection.version_of(api_key)

    def level_of(self, feature: str) -> int:
        """The level of a feature in the whole cluster; 0 if the broker names none."""
        return self._connection.features.get(feature, 0)

    @property
    def pending_count(self) -> int:
        """The number of requests without a response."""
        return self._connection.pending_count

    def is_alive(self) -> bool:
        """Whether the connection is still open. Call it only for a link without pending requests."""
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False

    # Out ------------------------------------------------------------------------------------------------------------

    def send(
        self, message: Request, *, deadline_ms: float, version_max: int | None = None, expects_response: bool = True
    ) -> int:
        """Send a request and return its correlation id, without waiting for the response."""
        sent = self._connection.request(message, version_max=version_max, expects_response=expects_response)
        self._write(sent.parts, deadline_ms)
        return sent.correlation_id

    def _write(self, parts: Iterable[Part], deadline_ms: float) -> None:
        buffers = _buffers(parts)
        while buffers:
            try:
                count = self._socket.sendmsg(buffers[:_PARTS_MAX])
            except (BlockingIOError, InterruptedError):
                self._wait(select.POLLOUT, deadline_ms)
                continue
            except OSError as error:
                raise ConnectionLost(f"the connection to {self.address} was lost ({why(error)})") from error
            buffers = _without(buffers, count)

    # In -------------------------------------------------------------------------------------------------------------

    def receive(self, deadline_ms: float) -> list[tuple[int, Any]]:
        """Wait for bytes, and return the responses that are complete now, perhaps none."""
        self._wait(select.POLLIN, deadline_ms)
        return self.received()

    def received(self) -> list[tuple[int, Any]]:
        """The responses that are complete now, without waiting."""
        responses: list[tuple[int, Any]] = []
        while True:
            buffer = self._connection.buffer()
            try:
                count = self._socket.recv_into(buffer)
            except (BlockingIOError, InterruptedError):
                return responses
            except OSError as error:
                raise ConnectionLost(f"the connection to {self.address} was lost ({why(error)})") from error
            if count == 0:
                count = self._connection.pending_count
                left = "1 request" if count == 1 else f"{count} requests"
                hint = "" if self._has_answered else FULL_HINT
                raise ConnectionLost(f"{self.address} closed the connection with {left} not answered{hint}")
            responses += self._connection.received(count)
            self._has_answered = self._has_answered or bool(responses)
            # If the buffer was not filled, the kernel has no more bytes now.
            if count < len(buffer) or responses:
                return responses

    def _wait(self, event: int, deadline_ms: float) -> None:
        self._poll.register(self._socket, event)
        if not self._poll.poll(max(0.0, deadline_ms - precise_ms())):
            raise RequestTimedOut(f"{self.address} did not answer in time")


def _buffers(parts: Iterable[Part]) -> list[memoryview]:
    pieces = [part.read() if isinstance(part, FileSlice) else part for part in parts]
    if sum(len(piece) for piece in pieces) <= _JOIN_BYTES_MAX:
        pieces = [b"".join(pieces)]
    return [memoryview(piece) for piece in pieces if len(piece)]


def _without(buffers: list[memoryview], count: int) -> list[memoryview]:
    """The buffers without their first `count` bytes."""
    for index, buffer in enumerate(buffers):
        if count < len(buffer):
            return [buffer[count:], *buffers[index + 1 :]]
        count -= len(buffer)
    return []


class Closing(ABC):
    """An object that a `with` statement closes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Release all resources."""


class Client(Closing):
    """A client for one thread: sends requests to any node, a given node, the controller or a leader."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        client_id: str = "minibroker",
        timeout_ms: int = 30_000,
        connect_timeout_ms: int = 10_000,
        metadata_max_age_ms: int = 300_000,
        retry: RetryPolicy | None = None,
        open_socket: OpenSocket = connect,
        authenticator: Authenticator | None = None,
    ) -> None:
        config = ClientConfig(
            client_id=client_id,
            timeout_ms=timeout_ms,
            connect_timeout_ms=min(connect_timeout_ms, timeout_ms),
            metadata_max_age_ms=metadata_max_age_ms,
            retry=retry or RetryPolicy(),
            authenticator=authenticator,
        )
        self._set_up(parse_addresses(bootstrap_servers), config, open_socket)

    def _set_up(self, bootstrap: Sequence[Address], config: ClientConfig, open_socket: OpenSocket) -> None:
        self.core = Core(bootstrap, config, clock=precise_ms, chance=random.random)
        self._open_socket = open_socket
        self._links: dict[Address, Link] = {}
        self._is_closed = False

    @property
    def config(self) -> ClientConfig:
        """The settings of the client."""
        return self.core.config

    def sibling(self) -> "Client":
        """Another client of the same cluster with its own sockets, for another thread."""
        other = Client.__new__(Client)
        other._set_up(self.core.routes.bootstrap, self.config, self._open_socket)
        other.core.routes.nodes.update(self.core.routes.nodes)
        return other

    def twin(self) -> "Client":
        """Another client for the same thread, with its own sockets. Both share what they know of the cluster."""
        other = self.sibling()
        other.core = self.core
        return other

    def close(self) -> None:
        """Close every connection; a second call does nothing."""
        self._is_closed = True
        for address in list(self._links):
            self.drop(address)

    # One request ----------------------------------------------------------------------------------------------------

    def send(
        self,
        message: Request,
        *,
        node_id: int | None = None,
        timeout_ms: float | None = None,
        version_max: int | None = None,
        expects_response: bool = True,
    ) -> Any:
        """Send one request, in the highest version that both sides know, and wait for its response.

        The request goes to any node, to the node with this id, or to the CONTROLLER. Error codes are not raised: the
        caller finds them in the response.
        """
        wait_ms = self.config.timeout_ms if timeout_ms is None else timeout_ms
        deadline_ms = precise_ms() + wait_ms
        link = self.any_link() if node_id is None else self.link(node_id)
        try:
            correlation_id = link.send(
                message, deadline_ms=deadline_ms, version_max=version_max, expects_response=expects_response
            )
            while expects_response:
                for answered, response in link.receive(deadline_ms):
                    if answered == correlation_id:
                        return response
        except RequestTimedOut:
            self.drop(link.address)
            raise RequestTimedOut(unanswered(link.address, message, wait_ms)) from None
        except BaseException:
            # Close the connection: a late response would be mistaken for the answer to another request.
            if link.pending_count or not expects_response:
                self.drop(link.address)
            raise
        return None

    def run(self, dialogue: Dialogue[T]) -> T:
        """Run a dialogue, and return its result."""
        try:
            order = next(dialogue)
            while True:
                try:
                    response = self._execute(order)
                except ClientError as error:
                    order = dialogue.throw(error)
                else:
                    order = dialogue.send(response)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _execute(self, order: Any) -> Any:
        if isinstance(order, Ask):
            return self.send(
                order.message, node_id=order.node_id, version_max=order.version_max, timeout_ms=order.timeout_ms
            )
        time.sleep(order.ms / 1000)
        return None

    # The cluster ----------------------------------------------------------------------------------------------------

    def metadata(
        self, topics: Iterable[str] | None = None, *, allow_auto_topic_creation: bool = False
    ) -> MetadataResponse:
        """The metadata of some topics, or of all if none are named, from any node."""
        return self.run(self.core.metadata(topics, allow_auto_topic_creation=allow_auto_topic_creation))

    def leader(self, topic: str, partition: int) -> int:
        """The node id of the leader of a partition."""
        return self.run(self.core.leader(topic, partition))

    def partition_count(self, topic: str, *, allow_auto_topic_creation: bool = False) -> int:
        """How many partitions a topic has."""
        return self.run(partition_count(self.core, topic, allow_auto_topic_creation=allow_auto_topic_creation))

    # Links ----------------------------------------------------------------------------------------------------------

    def link(self, node_id: int) -> Link:
        """The connection to a node, opened now if there is none."""
        found = self.run(self.core.node(node_id))
        return self._open(self.core.routes.nodes[found].address)

    def any_link(self) -> Link:
        """A connection to any node: an open one, or else one to the first node that answers."""
        reasons: list[BrokerUnavailable] = []
        places = [address for _node_id, address in self.core.routes.addresses()]
        # Nodes with an open connection come first.
        for address in sorted(places, key=lambda it: it not in self._links):
            try:
                return self._open(address)
            except BrokerUnavailable as error:
                reasons.append(error)
        raise BrokerUnavailable(no_broker(reasons))

    def _open(self, address: Address) -> Link:
        if self._is_closed:
            raise ClientClosed("this client is closed: make a new one")
        link = self._links.get(address)
        if link is not None and (link.pending_count or link.is_alive()):
            return link
        self.drop(address)
        link = self._links[address] = Link(address, self.config, open_socket=self._open_socket)
        return link

    def drop(self, address: Address) -> None:
        """Close the connection to an address, if there is one."""
        link = self._links.pop(address, None)
        if link is not None:
            link.close()
