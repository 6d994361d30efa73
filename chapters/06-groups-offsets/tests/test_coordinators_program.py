"""The chapter's program, `python -m minibroker.coordinators`: a stock consumer reads in a group."""

import sys
from pathlib import Path

from clients_stock import Message, confluent_consumer, confluent_take, confluent_write, create_topic

from minibroker.bench.launcher import Server


def test_a_stock_consumer_reads_in_a_group_of_the_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "minibroker.coordinators", "1", str(tmp_path / "data")]
    server = Server(lambda listen: [*command, listen], tmp_path)
    try:
        server.start()
        topic = create_topic(server.address, "orders")
        confluent_write(server.address, topic, [Message(b"1"), Message(b"2")])
        settings = {"group.id": "readers", "group.protocol": "consumer", "auto.offset.reset": "earliest"}
        consumer = confluent_consumer(server.address, **settings)
        consumer.subscribe([topic])
        assert [it.value for it in confluent_take(consumer, 2)] == [b"1", b"2"]
        consumer.commit(asynchronous=False)
        consumer.close()
        server.stop()
    finally:
        server.kill()
