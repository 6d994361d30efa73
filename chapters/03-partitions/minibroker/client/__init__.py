"""The client that nodes use to talk to each other: a connection to one address, and the requests on it.

The protocol is in modules that do no IO. The full client, which knows a whole cluster and retries, is in
`minibroker.clients` and is built on these modules.

The modules, lowest first:

- ``errors``: the errors of a client
- ``partitioners``: the partition of a key
- ``receiving``: splits a stream of bytes into frames, without copying large ones
- ``connection``: one connection, with correlation ids and version negotiation
- ``addresses``: `HOST:PORT`
- ``reasons``: the messages for a broker that cannot be reached or does not answer
- ``aio``: the asyncio client of one address

Nothing is re-exported here, so that importing one pure module never loads a module that does IO.
"""
