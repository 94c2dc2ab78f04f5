"""`python -m train`."""

from train.cli.main import main
from train.run import hosts

if __name__ == "__main__":
    hosts.leave(main())
