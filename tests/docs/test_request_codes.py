"""The page on request codes agrees with the code, and every served code has a test."""

from __future__ import annotations

from tests.docs.request_codes import PAGE, files_by_code, page, served_by_name_server
from wheelmq.broker.handlers import HANDLERS
from wheelmq.formats.wire.codes import RequestCode


def test_the_page_equals_the_generated_page() -> None:
    assert PAGE.read_text() == page(), "python -m tests.docs.request_codes"


def test_every_served_code_has_a_test() -> None:
    served = {*HANDLERS, *served_by_name_server()}
    assert [code.name for code in RequestCode if code in served and code not in files_by_code()] == []
