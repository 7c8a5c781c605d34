"""``python -m cometmq.cli``: runs the command without its installed script."""

import sys

from cometmq.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
