"""Owns the lab `unclean` of chapter 05: the last replica in sync is gone, and what that means is a setting.

Two topics with the same two replicas and the same records; only `unclean.leader.election.enable` differs. The follower
is stopped, as for maintenance; the leader alone goes on acknowledging; then it is killed, and the follower is back. It
lacks what was written meanwhile. A topic that waits for the leader has nothing until it is back, and then everything;
one that does not goes on at once, without those records.
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
    """What each node is: the third has no replica, and is there for the majority."""

    leader: int
    follower: int
    third: int


class Seen(NamedTuple):
    """How many records could be read, some seconds after the leader was killed."""

    at_s: float
    readable: int


@dataclass(frozen=True)
class Ended:
    """What came of one setting."""

    setting: str
    acked: int
    lost: int
    without_leader_s: float
    seen: Sequence[Seen] = field(default_factory=tuple)


def run_unclean(context: Context) -> Findings:
    """Start three nodes, and take the last replica in sync away."""
    with LocalCluster.within(context, *quick_settings()) as cluster:
        return unclean(context, cluster)


def unclean(context: Context, cluster: LocalCluster) -> Findings:
    """The experiment itself, on a cluster that runs."""
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
    """Read all back, and count."""
    lost = acked - read(cluster.bootstrap, TOPICS[setting])
    seen = observer.seen[setting]
    return Ended(setting, len(acked), len(lost), without_leader_s(seen), seen)


def without_leader_s(seen: Sequence[Seen]) -> float:
    """How long it took until something could be read again."""
    # The first looks may come before the kill is felt.
    down = next((number for number, it in enumerate(seen) if not it.readable), len(seen))
    return next((it.at_s for it in seen[down:] if it.readable), 0.0)


class Observer(Background):
    """Looks again and again how much of each topic can be read, on a thread of its own, through a node that stays."""

    def __init__(self, cluster: LocalCluster, at: int) -> None:
        super().__init__()
        self.seen: dict[str, list[Seen]] = {setting: [] for setting in TOPICS}
        self._client = Client(cluster[at].address, timeout_ms=_LOOK_MS_MAX)

    def close(self, *, is_well: bool) -> None:  # noqa: ARG002
        """Close the client."""
        self._client.close()

    def run(self) -> None:
        """Look, and note what was seen when."""
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
        """Whether it was gone, and is there again."""
        return without_leader_s(self.seen[setting]) > 0


# What it means --------------------------------------------------------------------------------------------------------


def table(found: Sequence[Ended]) -> Table:
    """Set out what each setting costs."""
    columns = ["unclean.leader.election.enable", "nobody leads, s", "acknowledged", "lost"]
    rows = [[each.setting, number_text(each.without_leader_s), f"{each.acked:,}", f"{each.lost:,}"] for each in found]
    return Table(columns, rows)


def figure(found: Sequence[Ended]) -> LineChart:
    """Draw what can be read over time."""
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
    """Only where something changes, and the ends: a straight line needs no points."""
    return [
        it
        for number, it in enumerate(seen)
        if number in (0, len(seen) - 1) or not seen[number - 1].readable == it.readable == seen[number + 1].readable
    ]


def reading(found: Sequence[Ended]) -> list[str]:
    """Say what the figures mean."""
    by = {each.setting: each for each in found}
    waits, goes_on = by[WAITS], by[GOES_ON]
    return [
        f"false: nobody led for {number_text(waits.without_leader_s)} s, until the killed node was started again; the "
        f"cluster would have waited for ever, and neither reads nor writes were served. Then all {waits.acked:,} "
        f"acknowledged records were there: {waits.lost:,} lost.",
        f"true: the follower led after {number_text(goes_on.without_leader_s)} s. {goes_on.lost:,} of "
        f"{goes_on.acked:,} records that were acknowledged to acks=all are gone for good: when the old leader came "
        f"back with them on its disk, it followed, and cut them off.",
        "Both were promised the same, with min.insync.replicas=1: the records were acknowledged when the leader alone "
        "was in sync. With 2 they would have been refused, and neither setting could have lost them. To wait or to "
        "lose is a question that min.insync.replicas puts earlier, to the producer, who can still do something.",
    ]


LABS = [
    Lab("unclean", "05", "the last replica in sync is gone: wait for it, or go on without its records", run_unclean)
]
