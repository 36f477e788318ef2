"""Users, signatures and access lists, for the broker and the name server (docs/operations/access.md)."""
