"""`python -m compat.mqadmin --target apache|ours`."""

import sys

from compat.mqadmin.run import main

sys.exit(main())
