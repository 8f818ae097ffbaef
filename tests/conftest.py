"""One thread for torch, here and in the commands that tests start: tests run side by side, one per core."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
