import sys

from compat.frames.run import main

sys.exit(main())
