"""The third generation: the timer wheel and timer log on disk, indexed and staged by the Spark pipeline."""
