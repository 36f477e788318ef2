"""`python -m compat.go --target apache|ADDRESS`."""

import sys

from compat.go.run import main

sys.exit(main())
