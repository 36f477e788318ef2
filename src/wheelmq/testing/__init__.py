"""For tests, ours and yours: a clock moved by hand, a disk that fails, a broker without sockets, a pipeline without
Spark.

Nothing here reads the time, sleeps or opens a socket, so a run with the same inputs goes the same way each time.
"""
