"""The files of a store: Apache RocketMQ 5.3's bytes, and the few of our own beside them."""
