"""Apache RocketMQ's keys of TLS: system properties, or lines of the file that tls.config.file names (TlsSystemConfig).

Broker and name server read them from their own file of settings.
"""

from __future__ import annotations

from typing import Final

from wheelmq.config.keys import Kind, honoured, no_effect, refused

BOOLEAN, TEXT = Kind.BOOLEAN, Kind.TEXT

_PASSWORD: Final = "a password in a file of settings can leak: write it to a file of its own, and name that in {}"

TLS_KEYS: Final = (
    honoured("tls.server.mode", TEXT, "permissive"),
    honoured("tls.server.certPath", TEXT, ""),
    honoured("tls.server.keyPath", TEXT, ""),
    refused("tls.server.keyPassword", TEXT, "", _PASSWORD.format("tls_key_password_file")),
    honoured("tls.server.trustCertPath", TEXT, ""),
    honoured("tls.server.need.client.auth", TEXT, "none"),
    no_effect("tls.server.authClient", BOOLEAN, "false", "a certificate of a client is always checked"),
    refused("tls.enable", BOOLEAN, "false", "it is a property of Java: write useTLS=true"),
    honoured("tls.client.certPath", TEXT, ""),
    honoured("tls.client.keyPath", TEXT, ""),
    refused("tls.client.keyPassword", TEXT, "", _PASSWORD.format("tls_outgoing_key_password_file")),
    honoured("tls.client.trustCertPath", TEXT, ""),
    honoured("tls.client.authServer", BOOLEAN, "false"),
    no_effect("tls.test.mode.enable", BOOLEAN, "true", "no server creates a certificate for tests"),
    refused("tls.config.file", TEXT, "</etc/rocketmq/tls.properties>", "write its keys into this file instead"),
    refused("tls.ciphers", TEXT, "", "the names of Java differ: write OpenSSL's names to tls_ciphers"),
    refused("tls.protocols", TEXT, "", "write the oldest accepted version to tls_min_version"),
)
"""`tls.ciphers` and `tls.protocols` exist since Apache RocketMQ 5.4.0."""
