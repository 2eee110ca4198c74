"""`python -m meshwright` is the command `meshwright`."""

import sys

from meshwright.cli.main import main

sys.exit(main())
