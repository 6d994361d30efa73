"""The data pipelines on Spark that `minibroker pipeline` runs, each a short module."""
