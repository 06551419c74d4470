"""All that `gpustat --json` shows of cards and their processes, as it is."""

import subprocess
import sys

shown = subprocess.check_output([sys.executable, "-I", "-m", "gpustat", "--json"], timeout=60)
sys.stdout.buffer.write(shown)
