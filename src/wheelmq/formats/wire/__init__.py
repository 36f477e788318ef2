"""The remoting protocol: frames, codes, headers, bodies."""
