"""Stores that Apache RocketMQ wrote, kept small, for tests that need no Java."""
