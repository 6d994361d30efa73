"""Which brokers get a partition where they stand in racks: what fails together must not hold all copies. A pure module.

Chapter 03 lets partitions begin with one broker after the other. This does so too, with the racks taking turns in that
ring, and then looks for the other replicas of a partition on racks that have none of it yet:

    racks       a: 1 2    b: 3 4    c: 5 6
    the ring    1 3 5 2 4 6
    partitions  [1 3 5]  [3 2 6]  [5 4 2]  [2 4 6]  …

In this order, each only where those before it leave a choice:

1. A live broker leads, and each leads as many as the next, or one more.
2. Each rack has as many replicas of a partition as the next, as far as its brokers reach.
3. Live brokers come before fenced ones.
4. Who has fewer replicas so far comes first.

So a small rack gets more than its share, as in Kafka: to be on all racks is worth more than to have equal work. Brokers
that say no rack stand together in one.
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
    """The replicas of one partition: the first of the order leads, and each next one is the best that is left."""
    chosen = [order[0]]
    while len(chosen) < count:
        on_rack = Counter(racks[it] for it in chosen)
        left = [it for it in order if it not in chosen]
        # Of those that are equally good it is the first in the order.
        chosen.append(min(left, key=lambda it: (on_rack[racks[it]], it in fenced, loads[it])))
    return tuple(chosen)
