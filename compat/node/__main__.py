"""`python -m compat.node --target apache|ADDRESS`."""

import sys

from compat.node.run import main

sys.exit(main())
