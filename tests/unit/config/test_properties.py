r"""Property files as java.util.Properties loads them. Java 17 loaded each case too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelmq.config.errors import ConfigError
from wheelmq.config.properties import parse, with_changes, write


def loaded(raw: bytes) -> dict[str, str]:
    return {one.name: one.value for one in parse(raw)}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"a=1\nb = 2\r\nc: 3\rd 4\n", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        (b"  a  =  1  \n", {"a": "1  "}),
        (b"a\n", {"a": ""}),
        (b"a==b\n", {"a": "=b"}),
        (b"a : = b\n", {"a": "= b"}),
        (b"# a=1\n ! b=2\n#c=3\\\nd=4\n", {"d": "4"}),
        (b"a=1\\\n    2,\\\r\n\t3\n", {"a": "12,3"}),
        (b"a=1\\\n#b\n", {"a": "1#b"}),
        (b"a=1\\\n\nb=2\n", {"a": "1", "b": "2"}),
        (b"a=1\\\\\nb=2\n", {"a": "1\\", "b": "2"}),
        (b"a=\\\\\\\n b\n", {"a": "\\b"}),
        (b"a\\ b\\=c\\:d=1\n", {"a b=c:d": "1"}),
        (b"a=\\t\\n\\r\\f\\z\\\"\\'\n", {"a": "\t\n\r\fz\"'"}),
        (b"a=C:\\\\store\\new\n", {"a": "C:\\store\new"}),
        (b"a=\\u00e4\\u4e2d\\ud83d\\ude00\n", {"a": "ä中\U0001f600"}),
        (b"a=\xe4\xc3\xa4\n", {"a": "ä\u00c3¤"}),
        (b"\\u0061=1\n", {"a": "1"}),
        (b"a=1\na=2\n", {"a": "2"}),
        (b"a=b\\", {"a": "b"}),
        (b"\xef\xbb\xbfa=1\n", {"\u00ef\u00bb\u00bfa": "1"}),
        (b"", {}),
        (b"\\\n\n\\\n", {}),
    ],
)
def test_files_load_as_in_java(raw: bytes, expected: dict[str, str]) -> None:
    assert loaded(raw) == expected


@pytest.mark.parametrize("raw", [b"a=1\nb=\\u00g1\n", b"a=1\nb=\\u12", b"# \\u\n\\uzzzz=1"])
def test_an_invalid_unicode_escape_is_rejected(raw: bytes) -> None:
    with pytest.raises(ConfigError, match=r"line 2: \\u.*: write \\u and four hexadecimal digits"):
        parse(raw)


def test_each_property_knows_its_lines() -> None:
    found = parse(b"\n# no\na=1\\\n  2\n\nb=3")
    assert [(one.name, one.line, one.last_line) for one in found] == [("a", 3, 4), ("b", 6, 6)]


@given(
    st.dictionaries(st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,9}", fullmatch=True), st.text(st.characters(codec="utf-8")))
)
def test_written_properties_load_unchanged(values: dict[str, str]) -> None:
    assert loaded(write(values).encode("latin-1")) == values


class TestChanges:
    def test_other_lines_are_kept(self) -> None:
        raw = b"# ours\r\n a = 1\r\nb=2\\\r\n  3\n\nc=4"
        assert with_changes(raw, {"b": "9", "d": "x y"}) == b"# ours\r\n a = 1\r\nb=9\n\nc=4\nd=x y\n"

    def test_the_later_of_two_lines_with_one_name_changes(self) -> None:
        assert loaded(with_changes(b"a=1\na=2\n", {"a": "3"})) == {"a": "3"}

    def test_a_change_of_an_empty_file_appends_a_line(self) -> None:
        assert with_changes(b"", {"a": " 1"}) == b"a=\\ 1\n"

    @given(
        st.binary(max_size=60).filter(lambda raw: b"u" not in raw),
        st.dictionaries(st.sampled_from(["a", "listenPort", "c"]), st.text(max_size=5), min_size=1),
    )
    def test_a_changed_file_loads_with_the_changes_only(self, raw: bytes, changes: dict[str, str]) -> None:
        changes = {name: value.encode("utf-16", "replace").decode("utf-16") for name, value in changes.items()}
        ends_open = raw.rstrip(b"\r\n").endswith(b"\\")
        if not ends_open:
            assert loaded(with_changes(raw, changes)) == loaded(raw) | changes


@pytest.mark.parametrize("name", ["a b", "a=b", "a:b", "#a", "!a", "a\\", "\t", "\u20ac", " a", ""])
def test_a_name_with_special_characters_loads_unchanged(name: str) -> None:
    assert loaded(write({name: "1"}).encode("latin-1")) == {name: "1"}
    assert loaded(with_changes(b"x=1", {name: "1"})) == {"x": "1", name: "1"}


@pytest.mark.parametrize("end", [b"\\", b"\\\n", b"\\\r\n", b"\\\\", b"\\\\\\"])
def test_a_line_after_a_final_backslash_stays_separate(end: bytes) -> None:
    raw = b"a=1" + end
    assert loaded(with_changes(raw, {"b": "2"})) == {**loaded(raw), "b": "2"}
