"""A log that a majority keeps: pull-based Raft as Kafka's quorum does it (KIP-595). Only pure modules.

Begin with `voters` (who counts), `election` (what a voter must never forget) and `roles` (what a node can be, and why
it becomes something else); `messages` has what nodes say to each other, and `node` is the state machine itself.
"""
