"""Each test runs the code that its mark, its folder or WHEELMQ_KERNELS chooses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.conftest import FOLDER, mode_of
from wheelmq.formats.kernels import jit


@pytest.mark.kernels
def test_the_mark_chooses_the_kernels() -> None:
    assert jit.available()


@pytest.mark.plain
def test_the_mark_chooses_the_plain_code() -> None:
    assert not jit.available()


@pytest.mark.parametrize(
    ("path", "mark", "chosen", "mode"),
    [
        ("unit/delay/test_park.py", "", "", "plain"),
        ("unit/delay/test_park.py", "", "compiled", "compiled"),
        ("unit/delay/test_park.py", "kernels", "plain", "compiled"),
        ("unit/delay/test_park.py", "plain", "compiled", "plain"),
        ("sim/test_simulation.py", "", "", "plain"),
        ("fuzz/test_targets.py", "", "", "compiled"),
        ("fuzz/test_targets.py", "", "plain", "plain"),
        ("twin/test_log_kernels.py", "", "plain", "compiled"),
        ("golden/test_ours.py", "", "plain", "compiled"),
    ],
)
def test_the_mark_goes_before_the_variable_and_the_folder(
    monkeypatch: pytest.MonkeyPatch, path: str, mark: str, chosen: str, mode: str
) -> None:
    monkeypatch.setenv("WHEELMQ_KERNELS", chosen)
    item = SimpleNamespace(path=FOLDER / path, get_closest_marker=lambda name: name == mark or None)
    assert mode_of(cast(Any, item)) == mode
