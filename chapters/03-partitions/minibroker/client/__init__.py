"""The only client of the project: for the command line, between nodes, for Spark.

What a client must decide is in modules that do no IO; what moves bytes is thin and stands twice, once blocking and once
on asyncio. A record is encoded once, when it is produced, and never decoded unless somebody asks for it.

The modules, lowest first:

- ``errors``: what can go wrong, each with what to do about it
- ``retries``: how long to wait before the next attempt, and when to give up
- ``partitioners``: which partition a record goes to
- ``receiving``: frames out of a stream of bytes, large ones without a copy
- ``connection``: one connection: correlation ids, version negotiation, requests out and responses in
- ``routing``: which node leads a partition, and what an error says about that
- ``batching`` and ``accumulator``: records gathered into batches, numbered, sent, and sent again in order
- ``fetched`` and ``fetching``: positions, fetch requests, and what came back
- ``core``: conversations of several requests, the same for both transports
- ``blocking`` and ``aio``: the two transports
- ``producer``, ``consumer``, ``admin``: what applications use

Nothing is re-exported here, so that importing one pure module never loads a module that does IO.
"""
