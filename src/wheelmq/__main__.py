"""`python -m wheelmq`: the command line."""

from wheelmq.cli import main

if __name__ == "__main__":
    main()
