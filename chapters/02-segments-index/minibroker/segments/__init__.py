"""Chapter 02: segments and indexes.

This package owns a partition's directory: its files, the search for an offset or a time, rolling, retention,
compaction, and recovery after a crash. It builds on chapter 01's log and on `Files`.

The modules, lowest first:

- ``config``: the settings of one log, with Kafka's names
- ``companions``: tables and files that follow every change of a log
- ``index`` and ``indexes``: map an offset to a position, and a time to an offset
- ``segment``: one log file and its indexes
- ``retention``: choose the segments that are too old, or that make the log too large
- ``loading``: open a directory after a clean shutdown or after a crash
- ``segmented``: the log itself
- ``keymap``, ``survivors`` and ``compaction``: keep only the newest record of each key
- ``checkpoint`` and ``directory``: the checkpoints and logs of a data directory
- ``checking``, ``scrub`` and ``dump``: find damage before a consumer does, and print files as text
- ``sparse``: create logs of any size quickly, for benchmarks and labs

Nothing is re-exported here, so that importing one pure module never loads a module that does IO.
"""
