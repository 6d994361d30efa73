"""The Kafka protocol: tables that read like its documentation, compiled into encoders and decoders.

The modules, lowest first:

- ``errors``: the errors of this package
- ``uuids``: ids of sixteen bytes, and their text
- ``fields``: the properties of a field and of a message, and ranges of versions
- ``source``, ``decoders``, ``encoders`` and ``compiling``: compile a table to Python source and to functions
- ``schema``: the language of the tables
- ``tables``: one module for each API
- ``apis`` and ``codes``: the list of APIs, the list of error codes
- ``headers`` and ``frames``: the headers before each message, and the length before each frame

All of them are pure: they turn bytes into objects and objects into bytes.
"""
