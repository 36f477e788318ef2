"""What the broker tells about itself."""
