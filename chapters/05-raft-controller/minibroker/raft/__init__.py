"""A log that a majority keeps: pull-based Raft as Kafka's quorum does it (KIP-595). Only pure modules.

Begin with `voters` (the nodes that count), `election` (what a voter must never forget) and `roles` (what a node can be,
and why it becomes something else); `messages` has what nodes say to each other. `polling` counts votes, `progress` has
what a leader knows of its followers, and `changes` the sets of voters in a log. `state` puts them together into what a
node is, and `node` is the state machine itself. `log` is the only door to its storage.
"""
