"""Maven projects that are built once: jars and classes stay in `target/` until the sources change."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from compat.building import BuildError, run_tool

BUILD_DEADLINE_S = 600.0
NEEDED_TOOLS = ("java", "javac", "mvn")


def java_and_maven_found() -> str | None:
    """Return the reason to skip if a JDK or Maven is not on the PATH; None if both are."""
    missing = [tool for tool in NEEDED_TOOLS if shutil.which(tool) is None]
    return f"not on the PATH: {', '.join(missing)}" if missing else None


@dataclass(frozen=True)
class MavenProject:
    """A folder with a pom.xml that copies its dependencies to `target/lib` in the phase `test-compile`."""

    folder: Path
    target_name: str = "target"
    """The folder below `folder` in which Maven builds. The pom must set any other value itself."""
    properties: tuple[tuple[str, str], ...] = ()
    """Properties that override those of the pom."""

    @property
    def target(self) -> Path:
        return self.folder / self.target_name

    def class_path(self) -> str:
        """Return the class path for plain `java -cp`. Maven runs only if pom.xml or a source has changed.

        A lock lets test processes start at the same time: one builds, the others wait.
        """
        self.target.mkdir(parents=True, exist_ok=True)
        stamp = self.target / "built"
        with _locked(self.target / "lock"):
            fingerprint = self._fingerprint()
            if not stamp.exists() or stamp.read_text() != fingerprint:
                stamp.unlink(missing_ok=True)
                self._build()
                stamp.write_text(fingerprint)
        parts = (self.target / "classes", self.target / "test-classes", self.target / "lib" / "*")
        return os.pathsep.join(map(str, parts))

    def _fingerprint(self) -> str:
        digest = hashlib.sha256(repr(self.properties).encode() if self.properties else b"")
        sources = sorted(path for path in (self.folder / "src").rglob("*") if path.is_file())
        for path in (self.folder / "pom.xml", *sources):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(self.folder)} {len(content)}\n".encode())
            digest.update(content)
        return digest.hexdigest()

    def _build(self) -> None:
        """Build from empty folders, so that nothing of an older version stays on the class path."""
        if reason := java_and_maven_found():
            raise BuildError(reason)
        for stale in ("classes", "test-classes", "lib"):
            shutil.rmtree(self.target / stale, ignore_errors=True)
        properties = [f"-D{key}={value}" for key, value in self.properties]
        pom = str(self.folder.absolute() / "pom.xml")
        run_tool(["mvn", "-f", pom, "-q", "-B", *properties, "test-compile"], self.folder, BUILD_DEADLINE_S)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
