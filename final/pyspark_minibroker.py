"""Registers the format `minibroker`: Spark imports every top-level module `pyspark_*` and takes its DefaultSource."""

from minibroker.spark.source import MinibrokerSource as DefaultSource

__all__ = ["DefaultSource"]
