"""A server whose load-backs are slowed or broken from outside: `Throttle` writes what `copy_faults` reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

_PLUGIN = Path(__file__).parent / "copy_faults"


class Throttle:
    """One server's control file, in `folder`; nothing is slowed before `set`."""

    def __init__(self, folder: Path) -> None:
        self._path = Path(folder) / "copy_faults.json"
        self.set()

    @property
    def env(self) -> dict[str, str]:
        """What the server's environment must hold."""
        paths = [str(_PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"COPY_FAULTS": str(self._path), "PYTHONPATH": os.pathsep.join(paths)}

    def set(self, delay_s: float = 0.0, s_per_token: float = 0.0, breaks_every: int = 0) -> None:
        """From the next load-back on: so much slower; every n-th fails."""
        wanted = {"delay_s": delay_s, "s_per_token": s_per_token, "breaks_every": breaks_every}
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(wanted))
        partial.replace(self._path)
