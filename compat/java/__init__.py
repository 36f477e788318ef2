"""The conformance suite: Apache's own Java client against any broker, ours and Apache's alike."""
