"""The page on request codes, made from the tables of codes and handlers: `python -m tests.docs.request_codes`."""

from __future__ import annotations

import inspect
import re
import tempfile
import textwrap
from collections import Counter
from pathlib import Path
from typing import Final

from tests.tidy.test_codes import TO_CLIENTS
from wheelmq.auth.rules import RULES
from wheelmq.broker.admission.unsupported_codes import UNSUPPORTED
from wheelmq.broker.handlers import HANDLERS
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.nameserver.nameserver import NameServer
from wheelmq.nameserver.settings import NameServerSettings
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.disk import SimulatedDisk

COLUMNS: Final = 118
NO_BREAK: Final = "\xa0"
"""A space at which a line of the page does not end."""
ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "request-codes.md"
BY_HARNESS: Final = {
    RequestCode.SEND_MESSAGE: "tests/unit/broker/test_send.py",
    RequestCode.SEND_BATCH_MESSAGE: "tests/unit/broker/test_send.py",
    RequestCode.WMQ_PIPELINE_PLAN: "tests/unit/broker/test_pipeline_handlers.py",
}
"""Codes that tests send without naming them."""

HEAD: Final = """# Request codes

This page lists the request codes of Apache RocketMQ 5.3.3 and of WheelMQ, their servers, and a test for each.
`python -m tests.docs.request_codes` generates it, and a test compares it with the code. The parentheses contain the
module of the handler in `broker/handlers`, and the test. The answer to an unsupported code is
REQUEST_CODE_NOT_SUPPORTED (3), with the reason if Apache RocketMQ supports the code.

*Rights* are the actions on resources that a user needs with `authorization_enabled`
([access](operations/access.md)). The parentheses contain the field of the header that names the resource. *Audited*
requests have a line in the audit log.

Suites of compat/ also send requests to both brokers: `mqadmin` those of administration, the Java client those of
clients, and `compat/frames` all of them.
"""


def files_by_code() -> dict[RequestCode, str]:
    """Return a test file that names the code: the one on the page if it still does, else the one that names it most."""
    named: dict[str, Counter[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if path.parent.name not in ("docs", "tidy"):
            for name, count in Counter(re.findall(r"RequestCode\.([A-Z_0-9]+)", path.read_text())).items():
                named.setdefault(name, Counter())[path.relative_to(ROOT).as_posix()] = count
    known = dict(
        re.findall(r"^- \*\*\d+ (\w+)\*\* \(.*?(tests/\S+)\)$", PAGE.read_text() if PAGE.exists() else "", re.M)
    )
    found = dict(BY_HARNESS)
    for code in RequestCode:
        files = named.get(code.name, Counter())
        if known.get(code.name) in files:
            found[code] = known[code.name]
        elif files and code not in found:
            found[code] = max(files, key=lambda file: ("/unit/" in file, files[file], file))
    return found


def served_by_name_server() -> frozenset[int]:
    """The codes that a name server serves."""
    with tempfile.TemporaryDirectory() as folder:
        settings = NameServerSettings(kv_config_path=Path(folder) / "kv")
        server = NameServer(settings, disk=SimulatedDisk(), clock=ManualClock())
        return server.codes


def page() -> str:
    """The page's text."""
    tests, name_server = files_by_code(), served_by_name_server()
    broker = [
        _item(
            f"**{_name(code)}** ({_module(HANDLERS[code])}, {tests.get(code, '')})",
            _what(HANDLERS[code]),
            _rights(code),
        )
        for code in RequestCode
        if code in HANDLERS
    ]
    names = [
        _item(f"**{_name(code)}** ({tests.get(code, '')})", _rights(code))
        for code in RequestCode
        if code in name_server
    ]
    clients = [_item(f"**{_name(code)}**") for code in RequestCode if code in TO_CLIENTS and code not in HANDLERS]
    by_reason: dict[str, list[str]] = {}
    for code, reason in sorted(UNSUPPORTED.items()):
        by_reason.setdefault(reason, []).append(_name(code).replace(" ", NO_BREAK))
    return "\n".join(
        [
            HEAD,
            _section("The broker", broker),
            _section("The name server", names),
            _section("Requests of a broker to its clients", clients),
            _section("Unsupported", [_item(f"**{reason}**:", ", ".join(names)) for reason, names in by_reason.items()]),
        ]
    )


def _name(code: int) -> str:
    return f"{code:d} {RequestCode(code).name}"


def _rights(code: RequestCode) -> str:
    """The rights that a user needs for the code."""
    rule = RULES[code]
    return f"Rights: {rule.text}.{' Audited.' if rule.is_audited else ''}"


def _item(head: str, *texts: str) -> str:
    """Return a list item: `head`, and each of `texts` below it."""
    wrapped = (textwrap.wrap(text, COLUMNS - 2, break_long_words=False, break_on_hyphens=False) for text in texts)
    lines = [line for one in wrapped for line in one]
    return "\n  ".join([f"- {head}", *lines]).replace(NO_BREAK, " ")


def _section(title: str, items: list[str]) -> str:
    return f"## {title}\n" + "\n".join(items) + "\n"


def _what(handler: object) -> str:
    """The first sentence of the handler's docstring."""
    text = inspect.getdoc(handler) or ""
    return " ".join(text.split("\n\n")[0].split())


def _module(handler: object) -> str:
    module = inspect.getmodule(handler)
    assert module is not None
    return module.__name__.rpartition(".")[2]


if __name__ == "__main__":
    PAGE.write_text(page())
