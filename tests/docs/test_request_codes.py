"""The page on request codes is as the code has it, and every code that is served has a test."""

from __future__ import annotations

from tests.docs.request_codes import PAGE, files_by_code, page, served_by_name_server
from wheelmq.broker.dispatch import HANDLERS
from wheelmq.formats.wire.codes import RequestCode


def test_the_page_is_the_table() -> None:
    assert PAGE.read_text() == page(), "python -m tests.docs.request_codes"


def test_every_code_that_is_served_has_a_test() -> None:
    served = {*HANDLERS, *served_by_name_server()}
    assert [code.name for code in RequestCode if code in served and code not in files_by_code()] == []
