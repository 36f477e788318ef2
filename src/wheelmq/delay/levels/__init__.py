"""The levels: fixed delays, the first generation of delayed messages."""
