"""Data pipelines on Spark: what `minibroker pipeline` runs, each a module that can be read in one sitting."""
