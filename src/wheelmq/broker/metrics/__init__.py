"""Metric families of a broker: those of messages, clients, groups, disk and process."""
