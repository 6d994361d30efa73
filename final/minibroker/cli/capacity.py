"""The needs of a workload: rates, network, disk, index memory, partitions and nodes. Arithmetic only.

The units are bytes, seconds and records. Network figures are sums over the cluster, separately for each direction. A
replicated byte counts in both directions, because one node sends it and another receives it.
"""

import math
from dataclasses import dataclass

INDEX_INTERVAL_BYTES = 4096  # index.interval.bytes: each index has one entry per interval of log
INDEX_ENTRY_BYTES = 8 + 12  # offset index: offset and position; time index: timestamp and offset


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The load that the cluster has to carry."""

    bytes_per_second: float  # from all producers, on average
    record_bytes: float
    peak_factor: float  # rate of the busiest hour divided by the average
    replication_factor: int
    retention_seconds: float
    groups: int  # each group reads every record


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The resources of one node, and the share of them that is kept free."""

    disk_bytes: float
    network_bytes_per_second: float  # in each direction
    headroom: float  # the share kept free for the failure of a node and for readers that catch up
    partition_bytes_per_second: float  # the rate that one partition and its reader can sustain
    segment_bytes: float


@dataclass(frozen=True, kw_only=True)
class Network:
    """Bytes per second over the whole cluster."""

    in_producers: float
    in_replication: float
    in_total: float
    out_groups: float
    out_replication: float
    out_total: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The resources that the cluster needs."""

    records_per_second: float
    records_per_second_peak: float
    network: Network
    network_peak: Network
    disk_bytes_one_copy: float
    disk_bytes: float  # all replicas
    index_bytes_max: float  # on disk and mapped: at most one entry per interval, fewer if batches are larger
    index_bytes_hot: float  # indexes of the active segments, which producers and up-to-date consumers use
    partitions: int
    nodes: int
    nodes_because: str


def plan(workload: Workload, machine: Machine) -> Plan:
    """Calculate the resources that a workload needs on the given machines."""
    network = network_of(workload, workload.bytes_per_second)
    peak = network_of(workload, workload.bytes_per_second * workload.peak_factor)
    one_copy = workload.bytes_per_second * workload.retention_seconds
    disk = one_copy * workload.replication_factor
    index = disk * INDEX_ENTRY_BYTES / INDEX_INTERVAL_BYTES
    nodes, because = nodes_of(workload, machine, peak, disk + index)
    partitions = partitions_of(machine, peak, nodes)
    # The active segments cannot be larger than the whole log.
    active = min(machine.segment_bytes * partitions * workload.replication_factor, disk)
    return Plan(
        records_per_second=workload.bytes_per_second / workload.record_bytes,
        records_per_second_peak=workload.bytes_per_second / workload.record_bytes * workload.peak_factor,
        network=network,
        network_peak=peak,
        disk_bytes_one_copy=one_copy,
        disk_bytes=disk,
        index_bytes_max=index,
        index_bytes_hot=active * INDEX_ENTRY_BYTES / INDEX_INTERVAL_BYTES,
        partitions=partitions,
        nodes=nodes,
        nodes_because=because,
    )


def network_of(workload: Workload, bytes_per_second: float) -> Network:
    """The network load of producers that write at this rate, of the groups that read, and of replication."""
    replication = bytes_per_second * (workload.replication_factor - 1)
    groups = bytes_per_second * workload.groups
    return Network(
        in_producers=bytes_per_second,
        in_replication=replication,
        in_total=bytes_per_second + replication,
        out_groups=groups,
        out_replication=replication,
        out_total=groups + replication,
    )


def nodes_of(workload: Workload, machine: Machine, peak: Network, disk_bytes: float) -> tuple[int, str]:
    """The number of nodes that the scarcest resource needs, and that resource."""
    usable = 1 - machine.headroom
    wanted = {
        "the disk": math.ceil(disk_bytes / (machine.disk_bytes * usable)),
        "the outgoing traffic at peak": math.ceil(peak.out_total / (machine.network_bytes_per_second * usable)),
        "the incoming traffic at peak": math.ceil(peak.in_total / (machine.network_bytes_per_second * usable)),
        "the replicas": workload.replication_factor,
    }
    because = max(wanted, key=wanted.__getitem__)
    return wanted[because], because


def partitions_of(machine: Machine, peak: Network, nodes: int) -> int:
    """Enough partitions for the peak, as a multiple of the nodes, so that each node leads the same number."""
    wanted = math.ceil(peak.in_producers / machine.partition_bytes_per_second)
    return math.ceil(wanted / nodes) * nodes
