"""Replication of one partition: its leader, its in-sync replicas, its high watermark. Only pure modules.

Begin with `leader` (how far each follower is), then `epochs` (where each leader's records begin), `follower` (how a log
is copied, and truncated where it diverges), and `replica`, which adds the leader to the follower and implements the
`ReplicaPort` of chapter 03.
`authority` has the commands that change leaders and in-sync sets. `throttling` limits how fast replicas copy.
"""
