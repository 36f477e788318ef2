"""Conformance with Apache's C++ client, through the package `rocketmq` that contains it."""
