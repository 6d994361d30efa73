"""Chapter 04: a cluster in one process, where time, chance, network and disk are ours.

This room owns the stage on which the state machines of this and of later chapters are tested: thirty seconds of a
cluster's life take a fraction of one, every fault comes from a seed, and a seed that fails once fails every time. It
knows nothing of replication. What is played on the stage is a `World`, which each chapter writes in its tests.

The modules, lowest first:

- ``chance``: streams of random numbers, each from the seed and a name
- ``scheduler``: the virtual clock, and what is to happen when
- ``trace``: what happened, kept only if somebody wants to read it
- ``process``: a node's process, which is killed, paused, and started again
- ``network`` and ``links``: messages between nodes, and a client's connection
- ``disk``: files that survive a kill, and lose what was not flushed when the power goes
- ``faults``: what goes wrong, as data, drawn anew by every seed
- ``states``: what a run must have met to be worth anything
- ``history`` and ``checker``: what clients saw, and whether a log could have shown them that
- ``shrinking``: the fewest faults with which a run still fails
- ``world``: what a chapter implements
- ``host`` and ``cluster``: a node's machine, and a world of several of them with the faults that hit any of them
- ``svg`` and ``diagram``: the spelling of drawings, and a run drawn as a space-time diagram
- ``running`` and ``__main__``: many seeds on many cores, and the report

All but the last two modules are pure; `random` is used, and always seeded.
"""
