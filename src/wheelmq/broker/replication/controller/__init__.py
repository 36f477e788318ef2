"""The broker's side of the protocol of Apache RocketMQ's controller, which elects the master of a broker name."""
