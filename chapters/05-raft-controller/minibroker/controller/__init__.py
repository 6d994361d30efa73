"""The controller of a cluster, on top of the quorum's log. All modules are pure.

`deciding` implements chapter 03's authority on the replicated log. `sessions` records which brokers are alive, and
`fencing` has the commands that fence brokers and elect other leaders. `lifecycle` has the commands that register,
unfence and remove brokers. `reassignment` moves partitions.
"""
