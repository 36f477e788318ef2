"""`python -m compat.replication`."""

import sys

from compat.replication.run import main

sys.exit(main())
