"""What replicas need of a node's place in its cluster, besides chapter 03's `ClusterPort`."""

from minibroker.partitions.cluster import ClusterPort
from minibroker.replicas.fetching import Self
from minibroker.replicas.peers import Peers


class Membership(ClusterPort):
    """A node of several: it has peers, and one of the nodes is the controller."""

    me: Self
    """This node in this incarnation. Its broker epoch is -1 until it is registered."""
    peers: Peers
    """The other nodes."""

    @property
    def controller_id(self) -> int:
        """The node that decides at the moment, as far as this one knows; -1 if there is none."""
        raise NotImplementedError
