"""Owns the lab `failover` of chapter 05: how long writes pause when the leader of a partition goes, again and again.

`minibroker.bench.failover` measures; `minibroker bench failover` is the same for the command line.
"""

from collections.abc import Sequence

from minibroker.bench import Context, Findings, Lab, LineChart, scaled
from minibroker.bench.context import quick_note
from minibroker.bench.failover import LEADER_FAULTS, SETTINGS, measure, quick_settings, sender_at_hand, table
from minibroker.bench.local import LocalCluster
from minibroker.bench.outages import PROMISES, Outages, distribution


def run_failover(context: Context) -> Findings:
    """Start three nodes; the leader is killed, paused and stopped, a few times each."""
    with LocalCluster.within(context, *SETTINGS, *quick_settings()) as cluster:
        return failover(context, cluster, rounds=scaled(full=5, quick=1))


def failover(context: Context, cluster: LocalCluster, *, rounds: int) -> Findings:
    """The experiment itself, on a cluster that runs."""
    # A stock client has pauses of its own, for which a quick run has no time.
    found = measure(
        cluster,
        LEADER_FAULTS,
        rounds,
        say=lambda fault, number, _: context.progress(number, rounds, fault.name),
        make_sender=scaled(full=sender_at_hand(), quick=None),
    )
    return findings(found)


def findings(found: Sequence[Sequence[Outages]]) -> Findings:
    """What was found of each fault: first as the prober saw it, then as the stock client did."""
    return Findings(table(found), reading(found), figure(found), {})


def figure(found: Sequence[Sequence[Outages]]) -> LineChart:
    """Draw how long the pauses were that the cluster itself needs."""
    return distribution(
        [fault[0] for fault in found],
        title="How long writes pause",
        x_label="milliseconds without an acknowledgement, seen by an impatient prober",
        y_label="share of the rounds",
        note=quick_note(),
    )


def reading(found: Sequence[Sequence[Outages]]) -> list[str]:
    """Say what the figures mean."""
    killed, paused, stopped = (fault[0] for fault in found)
    clients = [max(fault[1].lasted_ms) for fault in found if len(fault) > 1]
    more = f" librdkafka saw up to {max(clients):,} ms: it has timeouts of its own." if clients else ""
    return [
        f"Killed or paused, nobody says that the node is gone. It is silent, and after broker.session.timeout.ms the "
        f"controller takes it for dead and elects others: {killed.at(50):,} ms in the middle when it was killed and "
        f"{paused.at(50):,} ms when it was paused, {max(*killed.lasted_ms, *paused.lasted_ms):,} ms at most.{more} A "
        f"session begins anew with every heartbeat, so a pause is as long as the session, less what had passed of it.",
        f"Stopped with SIGTERM, it says so first: others lead before it goes, and writes pause for "
        f"{stopped.at(50):,} ms in the middle, {max(stopped.lasted_ms):,} ms at most. A node that is to be "
        f"restarted is told to stop, and not killed.",
        f"{killed.budget_text(PROMISES[0])}.",
    ]


LABS = [Lab("failover", "05", "how long writes pause when a leader is killed, paused or stopped", run_failover)]
