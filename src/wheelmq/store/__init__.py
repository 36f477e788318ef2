"""The store: the only writer of commit log and consume queues. It is synchronous and knows no sockets."""
