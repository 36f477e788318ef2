"""The dashboard: one read-only page over HTTP that shows the state of a broker and its pipeline."""
