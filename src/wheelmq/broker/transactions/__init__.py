"""Transactional messages. The broker holds each one until its producer commits it or rolls it back."""
