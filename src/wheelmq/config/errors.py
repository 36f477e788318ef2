"""What can be wrong with a configuration."""

from __future__ import annotations


class ConfigError(ValueError):
    """A configuration that cannot be used; the text names file, key, what was found and what is allowed."""
