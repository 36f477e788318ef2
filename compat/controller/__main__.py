"""`python -m compat.controller`."""

import sys

from compat.controller.run import main

sys.exit(main())
