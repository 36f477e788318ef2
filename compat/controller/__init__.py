"""Brokers of WheelMQ whose master Apache RocketMQ's own controller elects."""
