"""What a node needs to talk to another node: a connection to one address, and the requests on it.

What a client must decide is in modules that do no IO. The full client, which knows a whole cluster and retries, is in
`minibroker.clients`; it is built on these modules.

The modules, lowest first:

- ``errors``: what can go wrong, each with what to do about it
- ``partitioners``: which partition a record goes to
- ``receiving``: frames out of a stream of bytes, large ones without a copy
- ``connection``: one connection: correlation ids, version negotiation, requests out and responses in
- ``addresses``: `HOST:PORT`
- ``reasons``: what to say when a broker cannot be reached, or does not answer
- ``aio``: the asyncio client of one address

Nothing is re-exported here, so that importing one pure module never loads a module that does IO.
"""
