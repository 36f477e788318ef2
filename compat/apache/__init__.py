"""The real Apache RocketMQ, started on this machine as the oracle of tests and the rival of benchmarks."""
