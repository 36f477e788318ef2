"""The launcher of the pipeline: Java, a Spark session for many small turns, the driver and its supervisor."""
