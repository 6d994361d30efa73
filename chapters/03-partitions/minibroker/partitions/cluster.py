"""A node's membership in a cluster: the port `ClusterPort`, and `Alone`, a cluster of one node.

    identify    find out to which cluster the data directory belongs
    open        open the metadata log; from here on there is an authority
    join        register this node, and read the metadata at least up to its registration
    follow      open the partitions that the metadata assign to this node, and follow every change
    announce    return when clients may connect
    leave       hand over leadership to other nodes before this node stops

Chapter 04 adds `OneController`, where one fixed node is the controller. Chapter 05 adds `QuorumMember`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from minibroker.log.clock import wall_clock_ms
from minibroker.metadata.authority import METADATA_LOG_CONFIG, Authority, Voter
from minibroker.metadata.broker_commands import RegisterBroker
from minibroker.partitions.access import Access, Filter, Place
from minibroker.partitions.administration import Administration
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.identity import Identity, identify, new_id_bytes
from minibroker.partitions.machine import Machine
from minibroker.partitions.registry import Handler, Registry
from minibroker.partitions.store import METADATA, Store
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode


class Deciding(Authority, Protocol):
    """An authority that also knows which topics were deleted."""

    def removed_topics(self) -> Collection[bytes]:
        """The ids of the topics that the metadata log has deleted. Called once, at the start."""


class ClusterPort(Protocol):
    """A node's membership in a cluster. The methods are called in this order, `leave` and `stop` at the end.

    An implementation inherits from this class. The default bodies are right for a cluster of one node.
    """

    authority: Deciding
    """Decides about changes of the metadata, or forwards them to the controller. It is set by `open`."""
    rows: Mapping[ApiKey, Access] = {}
    """The access table of the APIs that `add_handlers` adds."""
    table: Mapping[ApiKey, Access] = {}
    """The access table of the whole node, which the node sets before `add_handlers`."""

    async def identify(self) -> Identity:
        """Find out to which cluster the data directory belongs. A new directory joins this node's cluster."""
        raise NotImplementedError

    def open(self, identity: Identity) -> None:
        """Open the metadata log."""
        raise NotImplementedError

    def add_handlers(self, registry: Registry, store: Store) -> None:
        """Serve the APIs of `rows`."""
        return

    def filters(self, judge: Handler) -> Mapping[Place, Filter]:
        """The filter for each place, which forwards calls there. Without a filter, this node answers the calls.

        `judge` says whether this broker would accept a change to its own configuration.
        """
        return {}

    async def join(self) -> None:
        """Register this node, and read the metadata at least up to its registration."""
        raise NotImplementedError

    async def follow(self, store: Store) -> None:
        """Open the partitions that the metadata assign to this node, and apply every later change."""
        store.start(self.authority.image, removed_topics=self.authority.removed_topics)
        self.authority.subscribe(store.follow)

    async def announce(self) -> None:
        """Return when this node may serve clients."""
        return

    def create_on_demand(self, administration: Administration, names: Sequence[str]) -> Mapping[str, ErrorCode]:
        """Create topics because a client asked for their metadata. Return a code for each that does not exist yet."""
        return administration.create_on_demand(names)

    async def leave(self) -> None:
        """Hand over leadership to other nodes."""
        return

    async def stop(self) -> None:
        """Stop everything that uses the logs, before they are closed."""
        return


class Alone(ClusterPort):
    """A cluster of one node: there is no other node to forward to, to wait for, or to hand over to."""

    def __init__(self, machine: Machine) -> None:
        if machine.is_login_demanded:
            raise BrokerFailure("this broker has no login, so no client could use a SASL_PLAINTEXT listener of it")
        self._machine = machine

    async def identify(self) -> Identity:
        """Read the directory's identity. A new directory is assigned to this node, in a new cluster."""
        return identify(self._machine.path, self._machine.config.node_id)

    def open(self, identity: Identity) -> None:
        """Open the metadata log. This node is its only voter."""
        metadata_log = open_metadata_log(self._machine)
        self.authority = Voter(metadata_log, cluster_id=identity.cluster_id, clock=wall_clock_ms)

    async def join(self) -> None:
        """Register this broker and its address in the metadata log."""
        config = self._machine.config
        registration = RegisterBroker(
            broker_id=config.node_id,
            incarnation_id=new_id_bytes(),
            endpoints=self._machine.endpoints,
            rack=config.broker_rack,
        )
        result = self.authority.propose(registration).result
        if result.code is not ErrorCode.NONE:
            raise BrokerFailure(f"node {config.node_id} could not be registered: {result.message}")


def open_metadata_log(machine: Machine) -> SegmentedLog:
    """Open the metadata log, which must not be empty if there are partitions."""
    metadata_log = machine.data.open_log(METADATA, METADATA_LOG_CONFIG)
    check_metadata_log(machine, metadata_log)
    return metadata_log


def check_metadata_log(machine: Machine, metadata_log: SegmentedLog) -> None:
    """Refuse to start if there are partitions, but no metadata."""
    orphans = [name.directory for name in machine.data.partitions() if name != METADATA]
    if metadata_log.log_end_offset == 0 and orphans:
        raise BrokerFailure(
            f"{machine.path} has {len(orphans)} partitions, such as {orphans[0]}, but its metadata log is empty: "
            f"restore {METADATA.directory} from a backup, or move the whole directory away to start a new broker"
        )
