"""Brokers, clients and suites of other projects, pinned and run against WheelMQ."""
