"""What we ask of the machine: clock, disk, work off the loop. Passed in, so that a test can pass in others."""
