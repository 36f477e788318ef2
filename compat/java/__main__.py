"""`python -m compat.java --target apache|ADDRESS`."""

import sys

from compat.java.run import main

sys.exit(main())
