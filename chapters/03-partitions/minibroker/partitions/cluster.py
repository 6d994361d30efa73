"""How a node belongs to a cluster: the port `ClusterPort`, and `Alone`, a node that needs no other.

    identify    of which cluster is this data directory?
    open        open the metadata log; from here on there is an authority
    join        be registered, and know the metadata at least up to there
    follow      let the partitions of this node be what the metadata say, from now on
    announce    return when clients may come
    leave       let other nodes take over, before this one stops to serve

Chapter 04 brings `OneController`, where one node decides for all, and chapter 05 `QuorumMember`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from minibroker.log.clock import wall_clock_ms
from minibroker.metadata.authority import METADATA_LOG_CONFIG, Authority, Voter
from minibroker.metadata.broker_commands import RegisterBroker
from minibroker.partitions.access import Access, Filter, Place
from minibroker.partitions.administration import Administration
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.identity import Identity, identify, new_id_bytes
from minibroker.partitions.machine import Machine
from minibroker.partitions.registry import Call, Handler, Registry
from minibroker.partitions.store import METADATA, Store
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode


class Deciding(Authority, Protocol):
    """An authority that also knows what is gone."""

    def removed_topics(self) -> Collection[bytes]:
        """The topics of which the metadata say that they were deleted. To be asked once, at the start."""


class ClusterPort(Protocol):
    """A node's place in its cluster. The methods are called in this order, `leave` and `stop` at the end.

    A place inherits from this class. The steps that have a body here are those of a node that needs no other.
    """

    authority: Deciding
    """Decides about metadata, or asks the node that does. It is there after `open`."""
    rows: Mapping[ApiKey, Access] = {}
    """The access table of the APIs that it serves itself."""

    async def identify(self) -> Identity:
        """Find out of which cluster the data directory is; a new one becomes part of this node's cluster."""
        raise NotImplementedError

    def open(self, identity: Identity) -> None:
        """Open the metadata log."""
        raise NotImplementedError

    def add_handlers(self, registry: Registry, store: Store) -> None:
        """Serve the APIs of `rows`."""
        return

    def filters(self, judge: Handler) -> Mapping[Place, Filter]:
        """How other places than this node are reached. A place that is not named is here.

        `judge` answers whether a change to this broker's own configuration could be taken.
        """
        return {}

    def is_node(self, call: Call[Any]) -> bool:
        """Whether another node makes a call, and no client."""
        return False

    async def join(self) -> None:
        """Be registered, and know the metadata at least up to there."""
        raise NotImplementedError

    async def follow(self, store: Store) -> None:
        """Open the partitions that the metadata give this node, and follow every change from now on, each at once."""
        store.start(self.authority.image, removed_topics=self.authority.removed_topics)
        self.authority.subscribe(store.follow)

    async def announce(self) -> None:
        """Return when this node may serve clients."""
        return

    def create_on_demand(self, administration: Administration, names: Sequence[str]) -> Mapping[str, ErrorCode]:
        """Create topics that a client has only mentioned; return why some are not there yet."""
        return administration.create_on_demand(names)

    async def leave(self) -> None:
        """Let other nodes take over what this one does."""
        return

    async def stop(self) -> None:
        """End what needs the logs, before they are closed."""
        return


class Alone(ClusterPort):
    """A cluster of one node, which decides by itself: no other can reach it, take over, or be waited for."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def identify(self) -> Identity:
        """A directory without an owner becomes this node's, in a cluster of its own."""
        return identify(self._machine.path, self._machine.config.node_id)

    def open(self, identity: Identity) -> None:
        """Be the only voter of the metadata log."""
        metadata_log = open_metadata_log(self._machine)
        self.authority = Voter(metadata_log, cluster_id=identity.cluster_id, clock=wall_clock_ms)

    async def join(self) -> None:
        """Say in the metadata log where this broker is to be found."""
        config = self._machine.config
        registration = RegisterBroker(
            broker_id=config.node_id,
            incarnation_id=new_id_bytes(),
            endpoints=(self._machine.endpoint,),
            rack=config.broker_rack,
        )
        result = self.authority.propose(registration).result
        if result.code is not ErrorCode.NONE:
            raise BrokerFailure(f"node {config.node_id} could not be registered: {result.message}")


def open_metadata_log(machine: Machine) -> SegmentedLog:
    """Open the log of all metadata. One that is empty knows none of the partitions that may be here."""
    metadata_log = machine.data.open_log(METADATA, METADATA_LOG_CONFIG)
    check_metadata_log(machine, metadata_log)
    return metadata_log


def check_metadata_log(machine: Machine, metadata_log: SegmentedLog) -> None:
    """Demand that the log of all metadata is there, where there are partitions."""
    orphans = [name.directory for name in machine.data.partitions() if name != METADATA]
    if metadata_log.log_end_offset == 0 and orphans:
        raise BrokerFailure(
            f"{machine.path} has {len(orphans)} partitions, such as {orphans[0]}, but no metadata that "
            f"knows them: restore {METADATA.directory} from a copy, or move the whole directory away to begin anew"
        )
