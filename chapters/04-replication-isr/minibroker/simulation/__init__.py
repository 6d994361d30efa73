"""Chapter 04: a cluster in one process, with a simulated clock, network and disk, and seeded chance.

This package simulates the state machines of this and of later chapters: thirty seconds of a cluster take a fraction of
a second, every fault comes from a seed, and a seed that fails once fails every time. It knows nothing of replication.
A simulation is a `World`, which each chapter writes in its tests.

The modules, lowest first:

- ``chance``: streams of random numbers, each from the seed and a name
- ``scheduler``: the virtual clock and its timers
- ``trace``: the events of a run, kept only on request
- ``process``: a node's process, which is killed, paused, and started again
- ``network`` and ``links``: messages between nodes, and a client's connection
- ``disk``: files that survive a kill, and lose unflushed data in a power cut
- ``faults``: faults as data, drawn by each seed
- ``states``: the states that the runs together must reach
- ``history`` and ``checker``: what clients saw, and whether a correct log could have shown them this
- ``shrinking``: the fewest faults with which a run still fails
- ``world``: what a chapter implements
- ``host`` and ``cluster``: a node's machine, and a world of several machines with the faults that all worlds share
- ``svg`` and ``diagram``: how SVG is written, and a run drawn as a space-time diagram
- ``running`` and ``__main__``: many seeds on many cores, and the report

All but the last two modules are pure; `random` is used, and always seeded.
"""
