"""Who decides for a cluster: the controller on top of the quorum's log. Only pure modules.

`deciding` turns a replicated log into the authority that chapter 03's handlers know; `sessions` knows who is alive;
`lifecycle` has the commands by which brokers come, fall silent and go; `moving` those that move partitions.
"""
