"""The store: the single writer of commit log and consume queues. Synchronous; knows no sockets."""
