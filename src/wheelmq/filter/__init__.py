"""SQL92 filters: an expression over the properties of messages, as Apache RocketMQ's rocketmq-filter has it."""
