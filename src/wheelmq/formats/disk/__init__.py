"""The files of a store: Apache RocketMQ 5.3's formats, and a few of our own."""
