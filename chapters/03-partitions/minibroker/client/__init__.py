"""What a node needs to talk to other nodes, and what every client is built on.

What a client must decide is in modules that do no IO. The full producer, consumer and administration are in
`minibroker.clients`.

The modules, lowest first:

- ``errors``: what can go wrong, each with what to do about it
- ``retries``: how long to wait before the next attempt, and when to give up
- ``partitioners``: which partition a record goes to
- ``receiving``: frames out of a stream of bytes, large ones without a copy
- ``connection``: one connection: correlation ids, version negotiation, requests out and responses in
- ``routing``: which node leads a partition, and what an error says about that
- ``core``: conversations of several requests, the same for every transport
- ``reasons``: what to say when no broker can be reached
- ``aio``: the asyncio transport

Nothing is re-exported here, so that importing one pure module never loads a module that does IO.
"""
