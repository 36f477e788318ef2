"""The kernels of the delays: release, the intake of a tick, turns, the key index, and the counts of slots."""
