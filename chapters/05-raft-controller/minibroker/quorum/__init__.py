"""The driver of the quorum: it carries votes and the metadata log over the wire, and brings the controller the time.

| module                                       | owns                                                              |
|----------------------------------------------|-------------------------------------------------------------------|
| `translating`, `running`, `changing`         | the driver                                                        |
| `watching`, `local`                          | clusters of processes on this machine, meant to be killed         |
| `sending`, `losing`, `failover`              | who writes to them meanwhile, and what is counted                 |
| `acknowledging`, `unclean`, `labs`           | the labs of the chapter                                           |

A node needs the first row alone.
"""
