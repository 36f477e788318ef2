"""Replication: masters, replicas, and the change between these roles."""
