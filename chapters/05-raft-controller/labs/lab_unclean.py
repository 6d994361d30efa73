"""The lab `unclean` of chapter 05: the last in-sync replica is gone, and a setting decides what follows.

Two topics have the same two replicas and the same records; only `unclean.leader.election.enable` differs. The follower
is stopped, as for maintenance, and the leader alone acknowledges records. Then the leader is killed, and the follower
comes back without those records. One topic is unavailable until the leader is back, and then has all records. The other
one is available at once, without them.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from labs.losing import read, write

from minibroker.bench import Context, Findings, Lab, Line, LineChart, Point, Table, scaled
from minibroker.bench.background import Background
from minibroker.bench.context import quick_note
from minibroker.bench.failover import quick_settings
from minibroker.bench.local import LocalCluster
from minibroker.bench.units import number_text
from minibroker.bench.watching import until
from minibroker.client.errors import ClientError
from minibroker.clients.admin import list_offsets
from minibroker.clients.blocking import Client
from minibroker.clients.fetching import LATEST
from minibroker.segments.checkpoint import TopicPartition

WAITS, GOES_ON = "false", "true"
TOPICS = {WAITS: "waits", GOES_ON: "goes-on"}
_LOOK_MS_MAX = 200
_LOOK_S = 0.05


class Roles(NamedTuple):
    """The role of each node: the third has no replica, and is needed for the majority."""

    leader: int
    follower: int
    third: int


class Seen(NamedTuple):
    """The number of readable records, at a time since the leader was killed."""

    at_s: float
    readable: int


@dataclass(frozen=True)
class Ended:
    """The result of one setting."""

    setting: str
    acked: int
    lost: int
    without_leader_s: float
    seen: Sequence[Seen] = field(default_factory=tuple)


def run_unclean(context: Context) -> Findings:
    """Start three nodes, and kill the last in-sync replica."""
    with LocalCluster.within(context, *quick_settings()) as cluster:
        return unclean(context, cluster)


def unclean(context: Context, cluster: LocalCluster) -> Findings:
    """Run the experiment on a running cluster."""
    safe, alone = scaled(full=(1000, 1000), quick=(50, 20))
    offline_s = scaled(full=8.0, quick=0.5)
    roles = prepare(cluster)
    acked = {setting: write(cluster.bootstrap, topic, 0, safe) for setting, topic in TOPICS.items()}
    context.progress(0, 3, "the follower is stopped, the leader goes on")
    cluster[roles.follower].stop()
    for setting, topic in TOPICS.items():
        cluster.await_isr(topic, roles.leader, at=[roles.leader, roles.third])
        acked[setting] |= write(cluster.bootstrap, topic, safe, alone)
    context.progress(1, 3, "the leader is killed, the follower comes back")
    with Observer(cluster, roles.third) as observer:
        cluster[roles.leader].kill()
        cluster[roles.follower].restart()
        until(lambda: observer.readable(GOES_ON), f"{TOPICS[GOES_ON]} is led again", seconds=40)
        time.sleep(offline_s)
        context.progress(2, 3, "the leader comes back")
        cluster[roles.leader].restart()
        until(lambda: observer.readable(WAITS), f"{TOPICS[WAITS]} is led again", seconds=40)
        for topic in TOPICS.values():
            cluster.await_isr(topic, roles.leader, roles.follower)
    found = [ended(cluster, observer, setting, acked[setting]) for setting in TOPICS]
    return Findings(table(found), reading(found), figure(found), {})


def prepare(cluster: LocalCluster) -> Roles:
    """Two topics that differ in one setting; the controller has no replica of either."""
    third = cluster.controller()
    leader, follower = cluster.others(third)
    for setting, topic in TOPICS.items():
        cluster.create(topic, [[leader, follower]], min_insync_replicas=1, unclean_leader_election_enable=setting)
        cluster.await_isr(topic, leader, follower)
    return Roles(leader, follower, third)


def ended(cluster: LocalCluster, observer: "Observer", setting: str, acked: set[bytes]) -> Ended:
    """Read all records back, and count the lost ones."""
    lost = acked - read(cluster.bootstrap, TOPICS[setting])
    seen = observer.seen[setting]
    return Ended(setting, len(acked), len(lost), without_leader_s(seen), seen)


def without_leader_s(seen: Sequence[Seen]) -> float:
    """The time until records could be read again."""
    # The first observations may be from before the kill.
    down = next((number for number, it in enumerate(seen) if not it.readable), len(seen))
    return next((it.at_s for it in seen[down:] if it.readable), 0.0)


class Observer(Background):
    """Observes how many records of each topic can be read, on a thread of its own, through a node that stays up."""

    def __init__(self, cluster: LocalCluster, at: int) -> None:
        super().__init__()
        self.seen: dict[str, list[Seen]] = {setting: [] for setting in TOPICS}
        self._client = Client(cluster[at].address, timeout_ms=_LOOK_MS_MAX)

    def close(self, *, is_well: bool) -> None:  # noqa: ARG002
        """Close the client."""
        self._client.close()

    def run(self) -> None:
        """Observe, and note each observation with its time."""
        begun_s = time.monotonic()
        while not self.is_over.wait(_LOOK_S):
            for setting, topic in TOPICS.items():
                readable = self._look(topic)
                self.seen[setting].append(Seen(time.monotonic() - begun_s, readable))

    def _look(self, topic: str) -> int:
        partition = TopicPartition(topic, 0)
        try:
            self._client.core.routes.doubt(topic)
            return list_offsets(self._client, {partition: LATEST})[partition].offset
        except ClientError:
            return 0

    def readable(self, setting: str) -> bool:
        """Whether the topic was unreadable, and is readable again."""
        return without_leader_s(self.seen[setting]) > 0


# Findings -----------------------------------------------------------------------------------------------------------


def table(found: Sequence[Ended]) -> Table:
    """The table of both settings."""
    columns = ["unclean.leader.election.enable", "no leader, s", "acknowledged", "lost"]
    rows = [[each.setting, number_text(each.without_leader_s), f"{each.acked:,}", f"{each.lost:,}"] for each in found]
    return Table(columns, rows)


def figure(found: Sequence[Ended]) -> LineChart:
    """Draw the number of readable records over time."""
    return LineChart(
        "The last replica in sync is killed",
        "seconds since then",
        "records that can be read",
        [
            Line(f"unclean.leader.election.enable={each.setting}", [Point(*it) for it in corners(each.seen)])
            for each in found
        ],
        note=quick_note(),
    )


def corners(seen: Sequence[Seen]) -> list[Seen]:
    """Only the points at which the line changes, and its ends."""
    return [
        it
        for number, it in enumerate(seen)
        if number in (0, len(seen) - 1) or not seen[number - 1].readable == it.readable == seen[number + 1].readable
    ]


def reading(found: Sequence[Ended]) -> list[str]:
    """Explain the figures."""
    by = {each.setting: each for each in found}
    waits, goes_on = by[WAITS], by[GOES_ON]
    return [
        f"false: there was no leader for {number_text(waits.without_leader_s)} s, until the killed node was restarted; "
        f"the cluster would have waited for ever, and neither reads nor writes were served. Then all {waits.acked:,} "
        f"acknowledged records were there: {waits.lost:,} lost.",
        f"true: the follower led after {number_text(goes_on.without_leader_s)} s. {goes_on.lost:,} of "
        f"{goes_on.acked:,} records that were acknowledged to acks=all are gone for good: when the old leader came "
        f"back with them on its disk, it followed, and truncated them.",
        "Both topics had min.insync.replicas=1: records were acknowledged while only the leader was in sync. With 2 "
        "the writes would have been refused, and neither setting could have lost them. So min.insync.replicas lets the "
        "producer choose between waiting and losing, before a record is acknowledged.",
    ]


LABS = [
    Lab("unclean", "05", "the last replica in sync is gone: wait for it, or go on without its records", run_unclean)
]
