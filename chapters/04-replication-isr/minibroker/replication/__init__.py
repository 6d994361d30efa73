"""Replication of one partition: its leader, its in-sync replicas, its high watermark. Only pure modules.

Begin with `epochs` (where each leader's records begin), then `leader` (how far each follower is), `follower` (how a
diverging log is truncated), and `replica`, which combines them and implements the `ReplicaPort` of chapter 03.
`authority` has the commands that change leaders and in-sync sets. `throttling` limits how fast replicas copy.
"""
