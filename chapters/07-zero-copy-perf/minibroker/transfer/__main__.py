"""The chapter's program: chapter 06's node with the fast server.

python -m minibroker.transfer 1 data/1 127.0.0.1:9092                                          alone, the only voter
python -m minibroker.transfer 1 data/1 127.0.0.1:9092 1@127.0.0.1:9092,2@127.0.0.1:9093,…      one of several
"""

import sys

from minibroker.coordinators.__main__ import main
from minibroker.transfer.loops import run
from minibroker.transfer.node import fast_node

if __name__ == "__main__":
    main(sys.argv[1:], assemble=fast_node, run=run, name="minibroker.transfer")
