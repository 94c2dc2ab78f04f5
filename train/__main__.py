"""`python -m train`."""

import sys

from train.cli.main import main
from train.run import hosts

if __name__ == "__main__":
    hosts.leave(main(sys.argv[1:]))
