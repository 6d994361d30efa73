"""Places replicas on racks, so that one rack never has all replicas of a partition. A pure module.

Chapter 03 gives the first replica to one broker after the other. This module does so too, in a ring in which the racks
take turns, and then puts the other replicas of a partition on racks without a replica of it:

    racks       a: 1 2    b: 3 4    c: 5 6
    the ring    1 3 5 2 4 6
    partitions  [1 3 5]  [3 2 6]  [5 4 2]  [2 4 6]  …

The rules, in order; each one decides only where the earlier ones leave a choice:

1. A live broker leads, and the numbers of leaderships differ by one at most.
2. The replicas of a partition are spread evenly over the racks, as far as a rack has brokers.
3. Live brokers come before fenced ones.
4. The broker with the fewest replicas so far comes first.

So the brokers of a small rack get more replicas than others, as in Kafka: being on all racks is worth more than equal
load. Brokers without a rack count as one rack.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest

from minibroker.metadata.image import Image
from minibroker.metadata.placement import first_stripe, place, stripe, usable_brokers

Racks = Mapping[int, str | None]


def place_on_racks(
    image: Image, *, topic_id: bytes, first_partition: int, partition_count: int, replication_factor: int
) -> list[tuple[int, ...]]:
    """The replicas of each new partition, the preferred leader first."""
    racks = {node_id: broker.rack for node_id, broker in image.brokers.items()}
    if len(set(racks.values())) < 2:
        return place(
            image,
            topic_id=topic_id,
            first_partition=first_partition,
            partition_count=partition_count,
            replication_factor=replication_factor,
        )
    live, fenced = usable_brokers(image, replication_factor)
    rings = _in_turns(live, racks), _in_turns(fenced, racks)
    start = first_stripe(topic_id, first_partition)
    loads: Counter[int] = Counter()
    placed = []
    for number in range(start, start + partition_count):
        order = stripe(rings[0], number) + stripe(rings[1], number)
        placed.append(_spread(order, racks, loads, set(fenced), replication_factor))
        loads.update(placed[-1])
    return placed


def _in_turns(brokers: Collection[int], racks: Racks) -> list[int]:
    """The brokers in an order in which the racks take turns."""
    names = sorted({racks[it] for it in brokers}, key=lambda name: (name is not None, name))
    groups = [[it for it in sorted(brokers) if racks[it] == name] for name in names]
    return [it for turn in zip_longest(*groups) for it in turn if it is not None]


def _spread(
    order: Sequence[int], racks: Racks, loads: Mapping[int, int], fenced: Collection[int], count: int
) -> tuple[int, ...]:
    """The replicas of one partition: the first broker of the order leads, and the best brokers of the rest follow."""
    chosen = [order[0]]
    while len(chosen) < count:
        on_rack = Counter(racks[it] for it in chosen)
        left = [it for it in order if it not in chosen]
        # Among equally good brokers, take the first in the order.
        chosen.append(min(left, key=lambda it: (on_rack[racks[it]], it in fenced, loads[it])))
    return tuple(chosen)
