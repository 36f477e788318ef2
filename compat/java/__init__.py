"""The conformance suite: Apache's own Java client against any broker, WheelMQ's or Apache's."""
