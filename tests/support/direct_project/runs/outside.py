"""What a run has of its own at each start."""

import os
import tempfile
import time
import uuid
from pathlib import Path

RUN_ID = uuid.uuid4().hex
STARTED = time.strftime("%Y-%m-%d %H:%M:%S") + f".{time.time_ns()}"
JOB = os.environ.get("SLURM_JOB_ID", "none")
OUTPUT = Path(tempfile.mkdtemp(prefix=f"run-{JOB}-", dir="."))
