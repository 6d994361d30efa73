"""Real clusters under trial, seen from outside: processes on this machine that are killed, paused and stopped.

| module                              | owns                                                                |
|-------------------------------------|---------------------------------------------------------------------|
| `watching`, `local`                 | clusters of processes, and what each node says of itself            |
| `sending`, `losing`, `failover`     | who writes to them meanwhile, and what is counted                   |
| `acknowledging`, `unclean`, `labs`  | the labs of the chapter                                             |

No node needs this room: labs, benchmarks, the command line and the tests do.
"""
