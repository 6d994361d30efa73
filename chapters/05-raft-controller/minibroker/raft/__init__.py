"""A log that is replicated to a majority: pull-based Raft, as in Kafka's quorum (KIP-595). Only pure modules.

Begin with `voters` (the nodes that count), `election` (the epoch and vote that a voter must never forget) and `roles`
(the roles of a node, and the causes of each change); `messages` has the messages that nodes exchange. `polling` counts
votes, `progress` tracks the followers of a leader, and `changes` has the voter sets of a log. `state` puts them
together into the state of a node. The state machine itself is in `leading`, `voting` and `node`: each is built on the
one before, and `leading` on the state. The state machine uses its storage only through `log`.
"""
