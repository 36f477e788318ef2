"""Names of client versions."""

from __future__ import annotations

import pytest

from wheelmq.formats.wire.client_versions import version_text
from wheelmq.formats.wire.frame import VERSION


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (-1, "V3"),
        (211, "V3"),
        (212, "V4_0_0_SNAPSHOT"),
        (231, "V4_0_9"),
        (232, "V4_1_0_SNAPSHOT"),
        (259, "V4_2_3"),
        (469, "V5_2_8"),
        (VERSION, "V5_3_3"),
        (480, "V5_3_4_SNAPSHOT"),
        (611, "V5_9_9"),
        (612, "HIGHER_VERSION"),
    ],
)
def test_a_number_has_apaches_name(number: int, text: str) -> None:
    assert version_text(number) == text
