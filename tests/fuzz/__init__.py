"""Fuzz tests: the readers of foreign bytes get random bytes, and the rules of each target must hold.

Each target is a module with `check(data)`, which raises an error if a rule is violated, and `TOKENS`, pieces that a
mutation may insert. `make fuzz` drives the targets by coverage, with atheris, which it installs into its own folder.
`make test` uses the corpus and mutations of it that a seed determines.
"""
