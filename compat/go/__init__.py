"""Conformance with Apache's Go client: client-go v2 in a Go program."""
