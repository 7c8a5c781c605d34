"""``python -m cometmq.cli``: the command without its script."""

import sys

from cometmq.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
