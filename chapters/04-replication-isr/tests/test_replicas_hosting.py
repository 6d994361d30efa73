"""Claims about a node's replicas that need no node."""

from minibroker.metadata.image import BrokerImage, Image
from minibroker.replicas.hosting import broker_epochs


def broker(node_id: int, *, is_fenced: bool = False, in_controlled_shutdown: bool = False) -> BrokerImage:
    return BrokerImage(
        node_id,
        "127.0.0.1",
        9000 + node_id,
        None,
        is_fenced,
        bytes(16),
        epoch=10 * node_id,
        in_controlled_shutdown=in_controlled_shutdown,
    )


def test_a_leader_knows_only_brokers_that_may_be_in_sync() -> None:
    """A fenced broker may fetch and catch up, but each proposal to add it would be refused."""
    brokers = (broker(1), broker(2, is_fenced=True), broker(3, in_controlled_shutdown=True), broker(4))
    assert broker_epochs(Image(brokers={it.node_id: it for it in brokers})) == {1: 10, 4: 40}
