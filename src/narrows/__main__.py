"""``python -m narrows`` is ``narrows``."""

from narrows.cli import main

main()
