"""Bugs planted into a copy of the package, which the simulation must find."""
