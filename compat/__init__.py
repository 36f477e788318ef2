"""Other people's brokers, clients and suites, pinned and run against WheelMQ."""
