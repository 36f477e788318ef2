"""The pipeline in any Spark session: leases, queries, turns and stages. It starts no JVM and changes no setting."""
