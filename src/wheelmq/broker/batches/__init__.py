"""Batches of a sink, committed once: tasks upload rows, and one commit appends those of the winning attempts."""
