"""`python -m meshwright` is the command line."""

import sys

from meshwright.cli import run

if __name__ == "__main__":
    sys.exit(run())
