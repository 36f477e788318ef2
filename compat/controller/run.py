"""Kill masters that Apache's controller elected, and check that the next one has each acknowledged message.

python -m compat.controller [--kills 10] [--brokers 2|3] [--controllers N]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from compat.apache.maven import java_and_maven_found
from compat.controller.cluster import CLUSTER, NAME, Cluster
from compat.controller.load import Load, check
from compat.replication.servers import until

FAILOVER_S_MAX: Final = 5.0


def kill_masters(folder: Path, kills: int, brokers: int, controllers: int, tell: Callable[[str], None]) -> list[str]:
    """Kill masters under load. Returns the violations."""
    violations: list[str] = []
    with Cluster(folder, brokers, controllers) as cluster:
        load = Load([one.address for one in cluster.brokers])
        load.start()
        times_ms = []
        try:
            for i in range(kills):
                load.wait_for_acknowledgement(time.monotonic())
                master = cluster.master
                assert master is not None, "an acknowledged send comes from a master"
                began = time.monotonic()
                master.kill()
                took_s = load.wait_for_acknowledgement(began)
                times_ms.append(round(1000 * took_s))
                if took_s > FAILOVER_S_MAX:
                    violations.append(f"kill {i + 1}: {took_s:.1f} s to the next acknowledged send")
                master.start()
                until("all brokers are in sync", cluster.is_whole)
                tell(f"kill {i + 1}: {times_ms[-1]} ms to the next acknowledged send")
        finally:
            load.stop()
        master = cluster.master
        assert master is not None
        found = check(master.address, load)
        tell(f"{found}, failover {min(times_ms)} to {max(times_ms)} ms")
        violations += [f"{found[name]} {name}" for name in ("lost", "twice", "early") if found[name]]
    return violations


def administer(folder: Path, tell: Callable[[str], None]) -> list[str]:
    """Run mqadmin's commands for controllers, and let it elect the slave. Returns the violations."""
    violations: list[str] = []
    with Cluster(folder, 2, 1) as cluster:
        controller = cluster.controllers[0].address
        master = cluster.master
        assert master is not None
        slave = next(one for one in cluster.brokers if one is not master)
        state = slave.state()
        assert state is not None
        outputs = {
            "getSyncStateSet": cluster.admin("getSyncStateSet", "-a", controller, "-b", NAME),
            "getControllerMetaData": cluster.admin("getControllerMetaData", "-a", controller),
            "getBrokerEpoch": cluster.admin("getBrokerEpoch", "-b", NAME),
            "electMaster": cluster.admin(
                *("electMaster", "-a", controller, "-b", str(state.broker_id), "-bn", NAME, "-c", CLUSTER)
            ),
        }
        for name, output in outputs.items():
            tell(f"{name}:\n{output}")
            if "Exception" in output:
                violations.append(f"mqadmin {name} fails: {output[:500]}")
        if outputs["getBrokerEpoch"].count("startOffset") < 2:
            violations.append("mqadmin getBrokerEpoch does not show the epochs of both brokers")
        if slave.address not in outputs["getSyncStateSet"]:
            violations.append("mqadmin getSyncStateSet does not show the slave")
        until("the elected slave is the master", lambda: slave.is_master and not master.is_master)
        until("the former master is in sync again", cluster.is_whole)
    return violations


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases. Returns 0 if all passed, 1 if some failed, and 2 without the tools."""
    parser = argparse.ArgumentParser(prog="python -m compat.controller", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--brokers", type=int, default=2)
    parser.add_argument("--controllers", type=int, help="as many as brokers if there are three, else 1")
    parser.add_argument("--no-admin", action="store_true", help="leave out mqadmin")
    options = parser.parse_args(argv)
    missing = java_and_maven_found()
    if missing:
        print(f"cannot run: {missing}", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="wheelmq-controller-"))
    controllers = options.controllers or (3 if options.brokers >= 3 else 1)

    def tell(text: str) -> None:
        print(text, flush=True)

    violations = kill_masters(folder / "kills", options.kills, options.brokers, controllers, tell)
    if not options.no_admin:
        violations += administer(folder / "admin", tell)
    for text in violations:
        tell(f"VIOLATION {text}; the files are in {folder}")
    if not violations:
        shutil.rmtree(folder)
    tell("FAILED" if violations else "all well")
    return 1 if violations else 0
