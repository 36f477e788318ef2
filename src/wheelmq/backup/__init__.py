"""Ship a store to a target, continuously or once, and restore it from there."""
