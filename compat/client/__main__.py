"""`python -m compat.client --target apache|wheelmq`."""

import sys

from compat.client.run import main

sys.exit(main())
