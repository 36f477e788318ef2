"""The settings of users and access lists. The broker has all of them, and the name server those that it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec

from wheelmq.auth.rules import NEVER_LISTED
from wheelmq.auth.users import BadUser, check_name, check_secret
from wheelmq.config.setting import Setting, SettingsTable
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.signature import AccessKey

KEY_SUFFIX: Final = ".key"
"""Ending of the key file next to the store: `HOME/store.key` belongs to `HOME/store`."""


class AuthSettings(SettingsTable, kw_only=True):
    """[auth]: users, access lists, and servers that other machines can reach."""

    authentication_enabled: Annotated[bool, Setting("authentication_enabled", "authenticationEnabled")] = False
    """Whether each request needs the signature of a user."""
    authentication_whitelist: Annotated[
        tuple[str, ...], Setting("authentication_whitelist", "authenticationWhitelist", narrower="request codes")
    ] = ()
    """Request codes that need no signature."""
    authorization_enabled: Annotated[bool, Setting("authorization_enabled", "authorizationEnabled")] = False
    """Whether each user, except super users, needs the rights that its requests need. Needs
    `authentication_enabled`."""
    authorization_whitelist: Annotated[
        tuple[str, ...], Setting("authorization_whitelist", "authorizationWhitelist", narrower="request codes")
    ] = ()
    """Request codes that need no rights."""
    init_user: Annotated[
        str,
        Setting("init_authentication_user", "initAuthenticationUser", narrower='{"username":"...","password":"..."}'),
    ] = ""
    """A super user that a start creates if it does not exist. Later starts do not change it. Secret."""
    inner_credentials: Annotated[
        str,
        Setting(
            "inner_client_authentication_credentials",
            "innerClientAuthenticationCredentials",
            narrower='{"accessKey":"...","secretKey":"..."}',
        ),
    ] = ""
    """The access key with which the broker signs its own requests. The servers that have this setting know it as a
    super user. Secret."""
    key_file: Annotated[str, Setting("auth_key_file")] = ""
    """The file of the key that encrypts the secrets of the users. Empty means the path of the store with `.key` at its
    end. The first user creates the file. A backup of the store without this file holds no readable secret."""
    allow_unauthenticated: Annotated[bool, Setting("allow_unauthenticated")] = False
    """Whether the server starts without users although other machines can reach it. Then protect the network."""
    audit_file: Annotated[str, Setting("audit_file")] = ""
    """The file of the audit log, one JSON line per request of an administrator. Empty means no audit log;
    `wheelmq broker` then writes HOME/logs/audit-broker.log."""

    def __repr__(self) -> str:
        return f"AuthSettings(authentication={self.authentication_enabled}, authorization={self.authorization_enabled})"

    def check(self) -> None:
        """Check the whitelists, and the users in settings. No text contains a secret."""
        for name in ("authentication_whitelist", "authorization_whitelist"):
            for text in getattr(self, name):
                _check_listed(name, text)
        if self.authorization_enabled and not self.authentication_enabled:
            raise ValueError(
                "authorization_enabled needs authentication_enabled: without signatures, anyone could claim the name "
                "of any user. Set authentication_enabled=true too"
            )
        _ = self.init_access_key, self.inner_access_key

    @property
    def codes_without_signature(self) -> frozenset[int]:
        return frozenset(map(int, self.authentication_whitelist))

    @property
    def codes_without_rights(self) -> frozenset[int]:
        return frozenset(map(int, self.authorization_whitelist))

    @property
    def init_access_key(self) -> AccessKey | None:
        """The user in `init_user`. Raises ValueError."""
        return _access_key("init_authentication_user", self.init_user, "username", "password")

    @property
    def inner_access_key(self) -> AccessKey | None:
        """The access key in `inner_credentials`. Raises ValueError."""
        return _access_key("inner_client_authentication_credentials", self.inner_credentials, "accessKey", "secretKey")

    def key_path(self, store: Path) -> Path:
        """Return the path of the key file of a store."""
        return Path(self.key_file) if self.key_file else store.with_name(store.name + KEY_SUFFIX)


def _check_listed(setting: str, text: str) -> None:
    known = {str(int(code)): code for code in RequestCode}
    if text not in known:
        raise ValueError(f"{setting} has {text[:50]!r}: write request codes, such as 105;206")
    if known[text] in NEVER_LISTED:
        raise ValueError(f"{setting} has {text} ({known[text].name}): anyone could then get all rights. Remove it")


def _access_key(setting: str, text: str, name_field: str, secret_field: str) -> AccessKey | None:
    """Return the access key in a JSON text; None if it is empty. Raises ValueError without the secret."""
    if not text.strip():
        return None
    form = f'{setting}: write {{"{name_field}":"NAME","{secret_field}":"SECRET"}}'
    try:
        found = msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError:
        raise ValueError(form) from None
    name, secret = found.get(name_field, ""), found.get(secret_field, "")
    if not name or not secret:
        raise ValueError(form)
    try:
        check_name(name)
        check_secret(secret)
    except BadUser as problem:
        raise ValueError(f"{setting}: {problem}") from None
    return AccessKey(name, secret)
