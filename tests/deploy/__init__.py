"""The files of deploy/ fit the program: commands, options, settings, ports and metrics."""
