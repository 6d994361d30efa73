"""The controller of a cluster, on top of the quorum's log. All modules are pure.

`deciding` implements chapter 03's authority on the replicated log. `sessions` records which brokers are alive.
`lifecycle` has the commands that register, fence and remove brokers. `reassignment` moves partitions.
"""
