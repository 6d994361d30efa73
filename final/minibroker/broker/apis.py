"""All APIs of the finished broker, for tools that must read any frame, and for the pages of the protocol.

A node does not need this module. It knows the APIs whose handlers it has imported.
"""

from minibroker.controller import tables as controller_tables
from minibroker.groups import tables as groups_tables
from minibroker.raft import tables as raft_tables
from minibroker.replication import tables as replication_tables
from minibroker.transactions import tables as transactions_tables
from minibroker.transfer import tables as transfer_tables
from minibroker.wire import tables as wire_tables
from minibroker.wire.apis import declare_all


def declare_every_api() -> None:
    """Import the tables of all chapters."""
    chapters = (
        wire_tables,
        replication_tables,
        raft_tables,
        controller_tables,
        groups_tables,
        transactions_tables,
        transfer_tables,
    )
    for tables in chapters:
        declare_all(tables)
