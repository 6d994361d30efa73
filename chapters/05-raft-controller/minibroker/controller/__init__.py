"""The controller of a cluster, on top of the quorum's log. Only pure modules.

`deciding` turns the replicated log into the authority that chapter 03's handlers use; `sessions` knows which brokers
are alive; `lifecycle` has the commands that register, fence and remove brokers; `reassignment` moves partitions.
"""
