"""The logger of tuning, `ejcache.autotune`."""

from __future__ import annotations

import functools
import logging
from typing import Final

from ejcache.util import log as package_log

logger: Final = logging.getLogger("ejcache.autotune")
warn_once: Final = functools.partial(package_log.warn_once, logger=logger)
