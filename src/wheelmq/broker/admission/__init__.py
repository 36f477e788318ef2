"""Admission: the checks that reject requests before they are served or stored, and the answers to rejected puts."""
