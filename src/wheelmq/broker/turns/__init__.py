"""The broker's side of the pipeline: leases, plans and commits of turns, and the fallback while no turn comes."""
