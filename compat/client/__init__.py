"""WheelMQ's own client against Apache RocketMQ 5.3.3 and against WheelMQ: one list of expectations."""
