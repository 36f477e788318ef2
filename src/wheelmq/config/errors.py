"""The error of a configuration."""

from __future__ import annotations


class ConfigError(ValueError):
    """A configuration that cannot be used. The text names the file, the key, the value and the allowed values."""
