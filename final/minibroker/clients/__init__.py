"""The full client: producer with an accumulator, consumer, administration, over a blocking transport.

The command line, the Spark connector and the benchmarks use it; no node does. It is built on chapter 03's `client`,
which has the connection that nodes need, too. A record is encoded once, when it is produced, and never
decoded unless the application asks for it.

The modules, lowest first:

- ``retries``: how long to wait before the next attempt, and when to give up
- ``routing``: which node leads a partition, and what an error says about that
- ``core`` and ``dialogues``: conversations of several requests, without a transport
- ``batching`` and ``accumulator``: records gathered into batches, numbered, sent, and sent again in order
- ``fetched`` and ``fetching``: positions, fetch requests, and what came back
- ``blocking``: the transport
- ``producer``, ``consumer``, ``admin``: what applications use

Nothing is re-exported here, so that importing one pure module never loads a module that does IO.
"""
