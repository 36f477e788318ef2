"""The broker's metrics about itself."""
