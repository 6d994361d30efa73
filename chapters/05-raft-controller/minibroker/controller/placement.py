"""Spreads the replicas of a partition over racks, so that one rack never has all of them. A pure module.

As in chapter 03, the brokers get the first replicas one after the other. Here their order alternates between the racks.
The other replicas of a partition are placed on racks that have no replica of it:

    racks       a: 1 2    b: 3 4    c: 5 6
    order       1 3 5 2 4 6
    partitions  [1 3 5]  [3 2 6]  [5 4 2]  [2 4 6]  …

The rules, the most important first:

1. A live broker leads, and the numbers of partitions that brokers lead differ by one at most.
2. The replicas of a partition are spread evenly over the racks, as far as the racks have enough brokers.
3. Live brokers come before fenced ones.
4. The broker with the fewest replicas so far comes first.

So the brokers of a small rack get more replicas than others, as in Kafka: using all racks is more important than equal
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
    """The brokers in an order that alternates between the racks."""
    names = sorted({racks[it] for it in brokers}, key=lambda name: (name is not None, name))
    groups = [[it for it in sorted(brokers) if racks[it] == name] for name in names]
    return [it for turn in zip_longest(*groups) for it in turn if it is not None]


def _spread(
    order: Sequence[int], racks: Racks, loads: Mapping[int, int], fenced: Collection[int], count: int
) -> tuple[int, ...]:
    """The replicas of one partition: the first broker of `order`, then the best of the others by rules 2 to 4."""
    chosen = [order[0]]
    while len(chosen) < count:
        on_rack = Counter(racks[it] for it in chosen)
        left = [it for it in order if it not in chosen]
        # Among equally good brokers, take the first in the order.
        chosen.append(min(left, key=lambda it: (on_rack[racks[it]], it in fenced, loads[it])))
    return tuple(chosen)
