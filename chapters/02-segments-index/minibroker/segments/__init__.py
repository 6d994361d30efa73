"""Chapter 02: segments and indexes.

This package owns a partition's directory: which files there are, how an offset or a time is found in them, when a new
one begins, which ones may be deleted, and what a crash leaves. It builds on chapter 01's log and on `Files`.

The modules, lowest first:

- ``config``: what can be set for one log, with Kafka's names
- ``companions``: tables and files that follow every change of a log
- ``index`` and ``indexes``: from an offset to a position, from a time to an offset
- ``segment``: one log file and its indexes
- ``retention``: which segments are too old or too many
- ``loading``: opening a directory after a clean shutdown, and after anything else
- ``segmented``: the log itself
- ``keymap``, ``survivors`` and ``compaction``: the newest record of each key stays
- ``checkpoint`` and ``directory``: what a data directory remembers between two starts
- ``checking``, ``scrub`` and ``dump``: damage found before a reader meets it, and files made readable
- ``sparse``: logs of any size made in a moment, for benchmarks and labs

Nothing is re-exported here, so that importing one pure module never loads a module that does IO.
"""
