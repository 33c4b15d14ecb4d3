"""No torch at all."""

import sys

print(sum(range(1000)), sys.argv[1:])
sys.exit(3)
