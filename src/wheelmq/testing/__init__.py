"""Tools for tests: a manual clock, a failing disk, a broker without sockets, a pipeline without Spark.

They read no time, never sleep and open no socket. A run with the same inputs therefore repeats exactly.
"""
