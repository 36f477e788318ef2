"""`python -m compat.cpp --target apache|ADDRESS`."""

import sys

from compat.cpp.run import main

sys.exit(main())
