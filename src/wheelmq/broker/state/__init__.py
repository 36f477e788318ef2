"""The broker's tables apart from the store: topics, groups, offsets, clients, locks."""
