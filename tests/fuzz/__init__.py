"""Bytes that nobody meant: what a broker reads from others is given any bytes, and what must hold holds.

Each target is a module with `check(data)`, which raises when something does not hold, and `TOKENS`, pieces that a
mutation may put in. `make fuzz` drives them by coverage (atheris, which it installs into a folder of its own);
`make test` by the corpus and by mutations of it that a seed decides.
"""
