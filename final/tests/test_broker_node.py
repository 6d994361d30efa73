"""Claims about a node of a cluster that need no cluster."""

from pathlib import Path

from minibroker.broker.node import ClusterNode
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.image import BrokerImage, Image


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


def test_a_leader_hears_only_of_those_who_may_be_in_sync(tmp_path: Path) -> None:
    """Who is fenced may fetch, and catch up. To propose it would be refused, at every fetch again."""
    node = ClusterNode(NodeConfig({"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}))
    brokers = (broker(1), broker(2, is_fenced=True), broker(3, in_controlled_shutdown=True), broker(4))
    image = Image(brokers={it.node_id: it for it in brokers})
    assert node._broker_epochs(image) == {1: 10, 4: 40}
