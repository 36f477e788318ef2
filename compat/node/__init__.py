"""Conformance with the Node client ali-ons, in a script of its own language."""
