"""Large orders of the topic `orders` go to the topic `large-orders`, exactly once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
BOOTSTRAP = spark.conf.get("minibroker.bootstrap")

dp.create_sink(
    "large_orders",
    "minibroker",
    {"kafka.bootstrap.servers": BOOTSTRAP, "topic": "large-orders", "delivery": "exactly-once"},
)


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    """Read the topic as a stream, and keep the orders of more than 100."""
    reader = spark.readStream.format("minibroker").option("kafka.bootstrap.servers", BOOTSTRAP)
    orders = reader.option("subscribe", "orders").option("startingOffsets", "earliest").load()
    amount = "try_cast(get_json_object(cast(value as string), '$.amount') as double)"
    return orders.where(f"{amount} > 100").select("key", "value")
