import sys

from compat.twin.run import main

sys.exit(main())
