"""The Kafka protocol: tables that are read like its documentation, compiled into encoders and decoders.

The modules, lowest first:

- ``errors``: what is refused
- ``uuids``: ids of sixteen bytes, and their text
- ``fields``: what a table says of a field, of a message, of versions
- ``source``, ``decoders``, ``encoders`` and ``compiling``: from a table to Python source to functions
- ``schema``: the language of the tables
- ``tables``: one module for each API
- ``apis`` and ``codes``: the list of APIs, the list of error codes
- ``headers`` and ``frames``: what stands before each message, and how messages are cut out of a stream
- ``tree``: a message shown field by field with its bytes
- ``document``: the pages of the documentation, made from the tables

All of them are pure: bytes in, objects out, and back.
"""
