"""How exact and how fast expectations are; writes docs/benchmarks.md."""

import os

# Threads of torch that wait for each other should sleep, not spin: where other programs run too,
# spinning multiplies every time by up to twenty. Read when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
