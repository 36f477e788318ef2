"""The second generation: messages by the hour in which they fall due, each block in files of its own (ours)."""
