"""Pairs of master and slave, one of Apache RocketMQ and one of WheelMQ, as real processes."""
