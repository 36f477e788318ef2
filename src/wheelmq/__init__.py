"""WheelMQ: a message broker that delivers each message at the moment its sender chose."""
