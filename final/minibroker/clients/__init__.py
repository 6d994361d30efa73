"""The full client: producer with an accumulator, consumer, groups, transactions, administration; a blocking transport.

The command line, the Spark connector and the benchmarks use it; brokers do not. It is built on chapter 03's `client`,
whose connection brokers use as well. A record is encoded once, when it is produced, and decoded only if the application
asks for it.

The modules, lowest first:

- ``errors`` and ``retries``: what can go wrong, how long to wait before the next attempt, and when to give up
- ``routing`` and ``hints``: the leader of each partition, and what an error code or an answer says about it
- ``partitioners``: the partition of a record
- ``core`` and ``dialogues``: work that takes several requests, without a transport
- ``batching`` and ``accumulator``: records collected into batches, which are numbered, sent, and resent in order
- ``fetched`` and ``fetching``: positions, fetch requests, and fetched batches
- ``coordination`` and ``membership``: committed offsets, and one member of a group in both protocols
- ``transacting``: the requests of a transactional producer
- ``blocking`` and ``waking``: the transport
- ``producer``, ``transactional``, ``consumer``, ``group_consumer``, ``admin``, ``group_admin``, ``transaction_admin``:
  the interface for applications

Nothing is re-exported here, so that importing one pure module never loads a module that does IO.
"""
