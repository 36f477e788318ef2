"""The delay pipeline: a Spark Structured Streaming application that indexes and stages parked messages."""
