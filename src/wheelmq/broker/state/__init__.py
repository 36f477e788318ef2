"""What the broker remembers beside the store: topics, groups, offsets, clients, locks."""
