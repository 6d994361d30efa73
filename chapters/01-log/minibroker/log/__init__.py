"""Chapter 01: the log.

This package owns the bytes of a record: varints, records, batches, their compression, and one append-only file that
keeps them. Every later chapter builds on it. It needs nothing but the standard library, a CRC and the codecs.

The modules, lowest first:

- ``errors``: what can be wrong with bytes, with an offset, or with a disk
- ``varint``: integers of one to ten bytes
- ``record``: one record inside a batch
- ``compression``: gzip, snappy, lz4, zstd, with a limit against decompression bombs
- ``batch``: the batch header, its checksum, and how a broker stamps it
- ``control``: the batches that a broker writes itself, such as transaction markers
- ``interfaces``: what a disk and a log must offer (``Files``, ``File``, ``Log``)
- ``disk`` and ``memory``: two implementations of ``Files``: the real one, and one that can lose power
- ``recovery``: how much of a file is valid after a crash
- ``logfile``: the log itself: append, read, flush, truncate
- ``text``, ``annotate`` and ``dump``: a log file made readable, down to each byte
- ``lines``: lines of text as records, and records as lines
- ``program``: options and error messages, shared by the programs of the chapters

Nothing is re-exported here, so that importing one pure module never loads a module that does IO.
"""
