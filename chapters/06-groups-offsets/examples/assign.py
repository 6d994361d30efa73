"""Compare the assignors: who gets which partition, and how many partitions move when a member leaves.

python chapters/06-groups-offsets/examples/assign.py
"""

from minibroker.groups.client_assignors import CLIENT_ASSIGNORS, Assigned, ClientAssignor, Subscriber
from minibroker.segments.checkpoint import TopicPartition

COUNTS = {"clicks": 4, "orders": 4}
TOPICS = frozenset(COUNTS)


def members(names: str, owned: Assigned | None = None, generation: int = 1) -> dict[str, Subscriber]:
    """Members that subscribe to both topics, with what they own."""
    return {name: Subscriber(TOPICS, tuple((owned or {}).get(name, ())), generation) for name in names}


def shown(partitions: list[TopicPartition]) -> str:
    """Partitions as `c0 c1 o0`: the first letter of the topic, and the number."""
    return " ".join(f"{it.topic[0]}{it.partition}" for it in partitions) or "-"


def moved(before: Assigned, after: Assigned) -> int:
    """How many partitions moved from a member that stays to another member."""
    owner = {it: name for name, partitions in before.items() for it in partitions if name in after}
    return sum(owner.get(it, name) != name for name, partitions in after.items() for it in partitions)


def settled(assignor: ClientAssignor, names: str, before: Assigned) -> Assigned:
    """The assignment after one rebalance, or after the second one where the first only takes away."""
    first = assignor(members(names, before), COUNTS)
    return assignor(members(names, first, 2), COUNTS)


def main() -> None:
    """Show both assignments for every assignor."""
    for title, names in (("three members", "abc"), ("a leaves", "bc")):
        print(f"{title}:")
        for name, assignor in CLIENT_ASSIGNORS.items():
            before = assignor(members("abc"), COUNTS)
            now = before if names == "abc" else settled(assignor, names, before)
            columns = "  ".join(f"{it}: {shown(now[it]):<11}" for it in names)
            moves = "" if names == "abc" else f"  moved between members that stay: {moved(before, now)}"
            print(f"  {name:<18}  {columns}{moves}".rstrip())


if __name__ == "__main__":
    main()
