"""Access to the machine: clock, disk, memory, worker threads. Callers pass these in, so a test can replace them."""
