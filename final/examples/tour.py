"""Orders as a table, in windows, in another topic, in Parquet files, and back again: docs/spark.md explains each step.

python final/examples/tour.py FOLDER
"""

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from minibroker.spark.java import session

BROKER = {"kafka.bootstrap.servers": os.environ.get("MINIBROKER_BOOTSTRAP_SERVER", "127.0.0.1:9092")}
FOLDER = Path(sys.argv[1]).absolute()
BAR_CHARS = 30

spark = session("tour", "local[2]")


def parsed(records: DataFrame) -> DataFrame:
    """Turn the JSON of each record into columns, and leave out what is not an order."""
    order = f.from_json(f.col("value").cast("string"), "region STRING, amount DOUBLE, time TIMESTAMP")
    return records.select(order.alias("order")).select("order.*").where("region IS NOT NULL AND amount > 0")


# A topic is a table.
records = spark.read.format("minibroker").options(**BROKER, subscribe="orders").load()
parsed(records).createOrReplaceTempView("orders")
spark.sql("SELECT region, count(*) AS orders, round(sum(amount)) AS revenue FROM orders GROUP BY region").show()

# A stream sums the orders of each region and second, and writes each sum that has changed, exactly once.
stream = spark.readStream.format("minibroker").options(**BROKER, subscribe="orders", startingOffsets="earliest").load()
windows = parsed(stream).withWatermark("time", "1 minute").groupBy(f.window("time", "1 second").alias("w"), "region")
sums = windows.agg(f.count("*").alias("orders"), f.sum("amount").alias("revenue"))
sums = sums.select("region", f.col("w.start").alias("start"), "orders", "revenue")


def write(changed: DataFrame, _batch: int) -> None:
    """Write the sums that a batch has changed; the last one of each key counts."""
    rows = changed.selectExpr("concat(region, '|', start) AS key", "to_json(struct(*)) AS value")
    given = BROKER | {"topic": "per-second", "delivery": "exactly-once"}
    rows.write.format("minibroker").mode("append").options(**given).save()


query = sums.writeStream.outputMode("update").foreachBatch(write)
query.option("checkpointLocation", str(FOLDER / "checkpoint")).trigger(availableNow=True).start().awaitTermination()

# The newest sum of each key goes into Parquet files, which any other program can read.
newest = (
    spark.read.format("minibroker")
    .options(**BROKER, subscribe="per-second")
    .load()
    .groupBy("key")
    .agg(f.max_by("value", "offset").alias("value"))
    .select("key", f.from_json(f.col("value").cast("string"), sums.schema).alias("sum"))
    .select("key", "sum.*")
)
newest.write.mode("overwrite").parquet(str(FOLDER / "per-second"))

# From the files back to a topic, and onto the screen.
archived = spark.read.parquet(str(FOLDER / "per-second"))
back = archived.selectExpr("key", "to_json(struct(region, start, orders, revenue)) AS value")
back.write.format("minibroker").mode("append").options(**BROKER, topic="per-second-again").save()
totals = archived.groupBy("region").agg(f.sum("revenue").alias("revenue"), f.sum("orders").alias("orders"))
rows = totals.orderBy(f.desc("revenue")).collect()
for row in rows:
    print(
        f"{row.region:12} {row.orders:6} {row.revenue:12,.2f} {'#' * round(BAR_CHARS * row.revenue / rows[0].revenue)}"
    )
spark.stop()
