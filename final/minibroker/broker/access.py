"""The access table of the finished broker: the rows that its packages declare."""

from minibroker.coordinators import access as coordinators
from minibroker.partitions import access as partitions
from minibroker.quorum import access as quorum
from minibroker.replicas import access as replicas
from minibroker.transactions.logs import TransactionLogs
from minibroker.transfer import quotas

ROWS = {
    **partitions.ROWS,
    **replicas.REPLICA_ROWS,
    **quorum.ROWS,
    **coordinators.ROWS,
    **TransactionLogs.rows,
    **quotas.ROWS,
}
