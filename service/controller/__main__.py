"""python -m service.controller: see `service.controller.controller`."""

import sys

from service.controller.controller import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
