"""Keys of Apache RocketMQ 5.3.3's AuthConfig."""

from __future__ import annotations

from typing import Final

from wheelmq.config.keys import Kind, no_effect, refused

BOOLEAN, INT, TEXT = Kind.BOOLEAN, Kind.INT, Kind.TEXT

_ACCESS: Final = "belongs to users and access lists, which do not exist here"

AUTH_KEYS: Final = (
    no_effect("configName", TEXT, "", _ACCESS),
    no_effect("clusterName", TEXT, "", _ACCESS),
    no_effect("authConfigPath", TEXT, "", _ACCESS),
    refused(
        "authenticationEnabled",
        BOOLEAN,
        "false",
        "there is no authentication, so all clients would have access: protect the network, then remove it",
    ),
    no_effect("authenticationProvider", TEXT, "", _ACCESS),
    no_effect("authenticationMetadataProvider", TEXT, "", _ACCESS),
    no_effect("authenticationStrategy", TEXT, "", _ACCESS),
    no_effect("authenticationWhitelist", TEXT, "", _ACCESS),
    no_effect("initAuthenticationUser", TEXT, "", _ACCESS),
    no_effect("innerClientAuthenticationCredentials", TEXT, "", _ACCESS),
    refused(
        "authorizationEnabled",
        BOOLEAN,
        "false",
        "there are no access lists, so all clients would have access: protect the network, then remove it",
    ),
    no_effect("authorizationProvider", TEXT, "", _ACCESS),
    no_effect("authorizationMetadataProvider", TEXT, "", _ACCESS),
    no_effect("authorizationStrategy", TEXT, "", _ACCESS),
    no_effect("authorizationWhitelist", TEXT, "", _ACCESS),
    refused("migrateAuthFromV1Enabled", BOOLEAN, "false", "there are no access lists: remove it"),
    no_effect("userCacheMaxNum", INT, "1000", _ACCESS),
    no_effect("userCacheExpiredSecond", INT, "600", _ACCESS, "s"),
    no_effect("userCacheRefreshSecond", INT, "60", _ACCESS, "s"),
    no_effect("aclCacheMaxNum", INT, "1000", _ACCESS),
    no_effect("aclCacheExpiredSecond", INT, "600", _ACCESS, "s"),
    no_effect("aclCacheRefreshSecond", INT, "60", _ACCESS, "s"),
    no_effect("statefulAuthenticationCacheMaxNum", INT, "10000", _ACCESS),
    no_effect("statefulAuthenticationCacheExpiredSecond", INT, "60", _ACCESS, "s"),
    no_effect("statefulAuthorizationCacheMaxNum", INT, "10000", _ACCESS),
    no_effect("statefulAuthorizationCacheExpiredSecond", INT, "60", _ACCESS, "s"),
)
