"""May a server listen where other machines can reach it?"""

from __future__ import annotations

from wheelmq.auth.settings import AuthSettings
from wheelmq.formats.hosts import is_loopback


def exposure_problem(what: str, host: str, auth: AuthSettings, *, has_users: bool) -> str | None:
    """Return why `what` must not listen on `host`, with the remedies; None if it may."""
    if is_loopback(host) or auth.allow_unauthenticated or (auth.authentication_enabled and has_users):
        return None
    lacks = "it has no users" if auth.authentication_enabled else "authentication is off"
    return (
        f"{what} would listen on {host}, where other machines can reach it, and {lacks}. Choose one: create a user "
        "(`wheelmq users add NAME --super --store STORE`) and set authentication_enabled=true and "
        "authorization_enabled=true; or set listen_host=127.0.0.1; or, in a network that you trust, set "
        "allow_unauthenticated=true"
    )


def metrics_problem(host: str, auth: AuthSettings) -> str | None:
    """Return why metrics without a token must not be served on `host`, with the remedies; None if they may."""
    if is_loopback(host) or auth.allow_unauthenticated:
        return None
    return (
        f"the metrics would be served on {host}, where other machines can read them without a token. Choose one: name "
        "a file with a token by metrics_prom_exporter_token_file; or set metrics_prom_exporter_host=127.0.0.1; or, in "
        "a network that you trust, set allow_unauthenticated=true"
    )
