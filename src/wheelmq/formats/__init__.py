"""Conversion of bytes to values and back: the remoting protocol (wire) and the files of a store (disk)."""
