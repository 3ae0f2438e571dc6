"""``python -m coralopt``."""

from coralopt.cli import main

main()
