"""SQL92 filters: expressions over the properties of messages, as in Apache RocketMQ's rocketmq-filter."""
