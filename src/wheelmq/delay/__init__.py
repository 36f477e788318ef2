"""Delayed delivery: park a message, keep it, and release it once, at its due time in milliseconds."""
