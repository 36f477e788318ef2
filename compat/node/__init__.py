"""Conformance with the Node client ali-ons, in a Node script."""
