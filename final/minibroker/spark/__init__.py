"""The Spark connector: topics as DataFrames, in batches and as streams."""
