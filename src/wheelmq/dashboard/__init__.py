"""The dashboard: one page over HTTP that shows what a broker and its pipeline do. It reads, and changes nothing."""
