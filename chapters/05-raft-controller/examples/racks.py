"""Count the partitions that have two replicas on one rack, with chapter 03's placement and with racks.

python chapters/05-raft-controller/examples/racks.py
"""

from collections import Counter
from collections.abc import Sequence

from minibroker.controller.placement import place_on_racks
from minibroker.metadata.image import BrokerImage, Image
from minibroker.metadata.placement import place

RACKS = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
TOPIC_ID = (60).to_bytes(16, "big")


def on_one_rack(partitions: Sequence[tuple[int, ...]]) -> int:
    """How many partitions would lose more than one replica with a rack."""
    return sum(max(Counter(RACKS[it] for it in replicas).values()) > 1 for replicas in partitions)


if __name__ == "__main__":
    image = Image(brokers={it: BrokerImage(it, "", 0, rack, False, bytes(16), 0) for it, rack in RACKS.items()})
    for title, placing in (("chapter 03's placement:", place), ("with racks:", place_on_racks)):
        placed = placing(image, topic_id=TOPIC_ID, first_partition=0, partition_count=6, replication_factor=3)
        print(f"{title:<23} {on_one_rack(placed)} of {len(placed)} partitions have two replicas on one rack")
