"""`python -m refold`: the command line, where the script `refold` is not on the path."""

import sys

from refold.runtime.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
