"""On PYTHONPATH, gives every process a wall clock of its own: hours or days ahead and faster or slower."""

import os
import time

_real, _started, _pid = time.time, time.time(), os.getpid()


def _skewed() -> float:
    rate = 0.5 + _pid % 4 / 2
    return _started + 3600 * (_pid % 997) + (_real() - _started) * rate


time.time = _skewed
