"""mqadmin 5.3.3, command by command, against Apache RocketMQ and WheelMQ."""
