"""Delayed delivery: park a message, keep it, release it at its millisecond, once."""
