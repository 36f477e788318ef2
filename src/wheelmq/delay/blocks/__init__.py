"""The second generation (WheelMQ's own): messages by the hour of their due time. Each block has separate files."""
