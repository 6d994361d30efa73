"""The lab `failover` of chapter 05: how long writes pause when the leader of a partition fails or stops.

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
    """Run the experiment on a running cluster."""
    # A stock client has timeouts of its own, which are too long for a quick run.
    found = measure(
        cluster,
        LEADER_FAULTS,
        rounds,
        say=lambda fault, number, _: context.progress(number, rounds, fault.name),
        make_sender=scaled(full=sender_at_hand(), quick=None),
    )
    return findings(found)


def findings(found: Sequence[Sequence[Outages]]) -> Findings:
    """The findings for each fault: of the prober first, then of the stock client."""
    return Findings(table(found), reading(found), figure(found), {})


def figure(found: Sequence[Sequence[Outages]]) -> LineChart:
    """Draw the pauses that the cluster itself needs."""
    return distribution(
        [fault[0] for fault in found],
        title="How long writes pause",
        x_label="milliseconds without an acknowledgement, seen by an impatient prober",
        y_label="share of the rounds",
        note=quick_note(),
    )


def reading(found: Sequence[Sequence[Outages]]) -> list[str]:
    """Explain the figures."""
    killed, paused, stopped = (fault[0] for fault in found)
    clients = [max(fault[1].lasted_ms) for fault in found if len(fault) > 1]
    more = f" librdkafka saw up to {max(clients):,} ms: it has timeouts of its own." if clients else ""
    return [
        f"A node that is killed or paused does not announce it. It is silent, and after broker.session.timeout.ms the "
        f"controller fences it and elects other leaders: {killed.at(50):,} ms in the middle when it was killed and "
        f"{paused.at(50):,} ms when it was paused, {max(*killed.lasted_ms, *paused.lasted_ms):,} ms at most.{more} A "
        f"session restarts with every heartbeat, so a pause is as long as the session, less the time since the last.",
        f"A node that is stopped with SIGTERM hands over its leaderships first, and writes pause for "
        f"{stopped.at(50):,} ms in the middle, {max(stopped.lasted_ms):,} ms at most. So stop a "
        f"node before a restart, and do not kill it.",
        f"{killed.budget_text(PROMISES[0])}.",
    ]


LABS = [Lab("failover", "05", "how long writes pause when a leader is killed, paused or stopped", run_failover)]
