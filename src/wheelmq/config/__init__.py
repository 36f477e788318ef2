"""Configuration: Apache's property files and keys, our TOML files and environment variables."""
