"""A deterministic simulation of a master and its slaves under one seed (docs/testing.md).

python -m wheelmq.testing.simulation --cluster --seeds 2000
python -m wheelmq.testing.simulation --cluster --seed 17 --trace
"""

from wheelmq.testing.cluster.simulation import ClusterSimulation

__all__ = ["ClusterSimulation"]
