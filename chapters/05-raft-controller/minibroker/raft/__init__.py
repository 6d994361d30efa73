"""A log that is replicated to a majority: pull-based Raft, as in Kafka's quorum (KIP-595). Only pure modules.

Begin with `voters` (the nodes that count), `election` (the epoch and vote that a voter must never forget) and `roles`
(the roles of a node, and the causes of each change); `messages` has the messages that nodes exchange. `polling` counts
votes, `progress` tracks the followers of a leader, and `changes` has the voter sets of a log. `state` puts them
together into the state of a node. `leading`, `voting` and `node` are the state machine itself, built on the state one
after the other. It uses its storage only through `log`.
"""
