"""Chapter 01: the log.

This package owns the bytes of a record: varints, records, batches, their compression, and one append-only file that
keeps them. Every later chapter builds on it. It depends only on the standard library, a CRC package and the codec
packages.

The modules, lowest first:

- ``errors``: the errors for invalid bytes, an invalid offset and a failing disk
- ``varint``: integers of one to ten bytes
- ``record``: one record inside a batch
- ``compression``: gzip, snappy, lz4, zstd, with a limit against decompression bombs
- ``batch``: the batch header, its checksum, and how a broker stamps it
- ``control``: the batches that a broker writes itself, such as transaction markers
- ``interfaces``: the methods of a disk and of a log (``Files``, ``File``, ``Log``)
- ``disk`` and ``memory``: ``Files`` on a real disk, and ``Files`` in memory that can lose power
- ``recovery``: how much of a file is valid after a crash
- ``logfile``: the log itself: append, read, flush, truncate
- ``text``, ``annotate`` and ``dump``: print a log file as text, down to each byte
- ``lines``: lines of text as records, and records as lines
- ``program``: options and error messages, shared by the programs of the chapters

Nothing is re-exported here, so that importing one pure module never loads a module that does IO.
"""
