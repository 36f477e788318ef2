"""The settings of users and access lists that the name server of `wheelmq up` takes over from the broker."""

from __future__ import annotations

from pathlib import Path

from wheelmq.cli.config_options import settings_of
from wheelmq.cli.part import CannotStart


def namesrv_auth_pairs(config: Path | None, broker_settings: tuple[str, ...], store: Path) -> list[str]:
    """Return settings as NAME=VALUE. Empty if the settings of the broker are wrong, which the broker then reports."""
    from wheelmq.broker.schema import BROKER

    try:
        settings, _ = settings_of(BROKER, config, broker_settings, fallbacks={"store_path": store}, options={})
    except CannotStart:
        return []
    auth = settings.auth
    found = ["allow_unauthenticated=true"] if auth.allow_unauthenticated else []
    if auth.authentication_enabled:
        found += [
            "authentication_enabled=true",
            f"authorization_enabled={str(auth.authorization_enabled).lower()}",
            f"auth_folder={store / 'config'}",
            f"auth_key_file={auth.key_path(store)}",
            f"auth_cluster={settings.broker.cluster}",
        ]
    return found
