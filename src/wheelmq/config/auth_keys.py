"""Keys of Apache RocketMQ 5.3.3's AuthConfig."""

from __future__ import annotations

from typing import Final

from wheelmq.config.keys import Kind, honoured, no_effect, refused

BOOLEAN, INT, TEXT = Kind.BOOLEAN, Kind.INT, Kind.TEXT

_FILES: Final = (
    "users and access lists are in config/users.json and config/acls.json, and no other class can check them"
)
_STATELESS: Final = "each signature is verified and each right is checked, whatever the strategy"
_IN_MEMORY: Final = "all users and lists are in memory, and a change counts at once"

AUTH_KEYS: Final = (
    no_effect("configName", TEXT, "", "the resource of administration has the name of the cluster"),
    no_effect("clusterName", TEXT, "", "the resource of administration has the name of the cluster"),
    no_effect("authConfigPath", TEXT, "", "users and access lists are in the config folder of the store"),
    honoured("authenticationEnabled", BOOLEAN, "false"),
    no_effect("authenticationProvider", TEXT, "", _FILES),
    no_effect("authenticationMetadataProvider", TEXT, "", _FILES),
    no_effect("authenticationStrategy", TEXT, "", _STATELESS),
    honoured("authenticationWhitelist", TEXT, ""),
    honoured("initAuthenticationUser", TEXT, ""),
    honoured("innerClientAuthenticationCredentials", TEXT, ""),
    honoured("authorizationEnabled", BOOLEAN, "false"),
    no_effect("authorizationProvider", TEXT, "", _FILES),
    no_effect("authorizationMetadataProvider", TEXT, "", _FILES),
    no_effect("authorizationStrategy", TEXT, "", _STATELESS),
    honoured("authorizationWhitelist", TEXT, ""),
    refused(
        "migrateAuthFromV1Enabled",
        BOOLEAN,
        "false",
        "WheelMQ does not read plain_acl.yml: create its accounts with `wheelmq users add` and `wheelmq acl grant`, "
        "then remove it",
    ),
    no_effect("userCacheMaxNum", INT, "1000", _IN_MEMORY),
    no_effect("userCacheExpiredSecond", INT, "600", _IN_MEMORY, "s"),
    no_effect("userCacheRefreshSecond", INT, "60", _IN_MEMORY, "s"),
    no_effect("aclCacheMaxNum", INT, "1000", _IN_MEMORY),
    no_effect("aclCacheExpiredSecond", INT, "600", _IN_MEMORY, "s"),
    no_effect("aclCacheRefreshSecond", INT, "60", _IN_MEMORY, "s"),
    no_effect("statefulAuthenticationCacheMaxNum", INT, "10000", _STATELESS),
    no_effect("statefulAuthenticationCacheExpiredSecond", INT, "60", _STATELESS, "s"),
    no_effect("statefulAuthorizationCacheMaxNum", INT, "10000", _STATELESS),
    no_effect("statefulAuthorizationCacheExpiredSecond", INT, "60", _STATELESS, "s"),
)
