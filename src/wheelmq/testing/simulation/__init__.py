"""A deterministic simulation: broker, name server, clients and pipeline under one seed (docs/testing.md).

python -m wheelmq.testing.simulation --seeds 2000
python -m wheelmq.testing.simulation --seed 17 --trace
"""

from wheelmq.testing.simulation.run_result import RunResult
from wheelmq.testing.simulation.simulation import Simulation

__all__ = ["RunResult", "Simulation"]
