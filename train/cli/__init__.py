"""The command line, which may import all other packages of `train`."""
