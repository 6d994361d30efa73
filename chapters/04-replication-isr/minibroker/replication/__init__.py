"""Replication of one partition: who leads, who is in sync, what is safe. Only pure modules.

Begin with `epochs` (where each leader's records begin), then `leader` (who has what), `follower` (how a log is brought
into line), and `replica`, which puts them together behind the port that the handlers of chapter 03 know. `authority`
has the commands by which leaders and in-sync sets change.
"""
