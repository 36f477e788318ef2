"""The same random requests to Apache RocketMQ's broker and to WheelMQ's, compared answer by answer."""
