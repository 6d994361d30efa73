"""Send a batch twice, like a producer that did not get the answer, and print its offsets.

    python chapters/03-partitions/examples/twice.py

The broker's address is MINIBROKER_BOOTSTRAP_SERVER, or 127.0.0.1:9092. The topic is `twice`.
"""

import os

from minibroker.clients.admin import NewTopic, create_topics, list_topics
from minibroker.clients.blocking import Client
from minibroker.log.batch import BatchBuilder
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.init_producer_id import InitProducerIdRequest
from minibroker.wire.tables.produce import PartitionProduceData, ProduceRequest, TopicProduceData

TOPIC = "twice"
NO_PRODUCER_ID = -1


def send(client: Client, producer_id: int, sequence: int) -> str:
    """Send a batch of one record. Return the offset or the error in the answer."""
    is_numbered = producer_id != NO_PRODUCER_ID
    builder = BatchBuilder(
        producer_id=producer_id, producer_epoch=0 if is_numbered else -1, base_sequence=sequence if is_numbered else -1
    )
    builder.append(timestamp=1_700_000_000_000, key=None, value=b"order %d" % sequence)
    partition = PartitionProduceData(index=0, records=builder.build())
    topic = TopicProduceData(name=TOPIC, partition_data=[partition])
    response = client.send(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]))
    answer = response.responses[0].partition_responses[0]
    return f"offset {answer.base_offset}" if not answer.error_code else ErrorCode(answer.error_code).name


def main() -> None:
    """Send without sequences, with sequences, and with more sequences than a partition remembers."""
    with Client(os.environ.get("MINIBROKER_BOOTSTRAP_SERVER", "127.0.0.1:9092")) as client:
        if TOPIC not in list_topics(client):
            create_topics(client, [NewTopic(TOPIC, 1)])
        print(f"not numbered, sent twice:    {send(client, NO_PRODUCER_ID, 0)}, {send(client, NO_PRODUCER_ID, 0)}")
        producer_id = client.send(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)).producer_id
        print(f"sequence 0, sent twice:      {send(client, producer_id, 0)}, {send(client, producer_id, 0)}")
        print(f"sequence 2, with 1 missing:  {send(client, producer_id, 2)}")
        print(f"sequences 1, 2, 3, 4:        {', '.join(send(client, producer_id, n) for n in (1, 2, 3, 4))}")
        print(f"sequence 0 again:            {send(client, producer_id, 0)}")
        print(f"sequence 5:                  {send(client, producer_id, 5)}")
        print(f"sequence 0 once more:        {send(client, producer_id, 0)}")


if __name__ == "__main__":
    main()
