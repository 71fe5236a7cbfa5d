"""Keeps the learned law of reuse over restarts: `law_path` in the policy's configuration.

Every rank starts from the same bytes: the first rank of the tensor-parallel group reads them and the others
are told. A file that does not fit is refused with one line and the server starts cold.
"""

from __future__ import annotations

import logging
from pathlib import Path

from sglang.srt.runtime_context import get_parallel, get_server_args

from radiximp.policy.gittins import GittinsPolicy
from radiximp.policy.saved_law import SavedLawError, dump_law, load_law
from radiximp.replay.files import FileError, write_whole

logger = logging.getLogger(__name__)

# Seconds of the arrival clock between two saves; a save takes milliseconds.
_SAVE_INTERVAL_S = 300.0


class LawFile:
    """One a tree core; does nothing unless a path is configured."""

    def __init__(self, path: str, policy: GittinsPolicy) -> None:
        self._path = Path(path)
        self._policy = policy
        self._model = get_server_args().model_path
        self._saved_s = 0.0
        self._is_writer = get_parallel().tp_rank == 0 and not get_parallel().dp_rank

    def load(self) -> None:
        """Adopt the file's evidence, where there is one that fits."""
        data = get_parallel().tp_group.broadcast_object(self._read() if get_parallel().tp_rank == 0 else None)
        if data is None:
            return
        try:
            load_law(self._policy.law, data, self._model)
            self._policy.refresh(0.0)
            logger.info("radiximp: law_path %s adopted, %d classes", self._path, self._policy.law.num_classes)
        except SavedLawError as error:
            logger.warning("radiximp: law_path %s is not used, starting cold: %s", self._path, error)

    def _read(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning(
                "radiximp: law_path %s cannot be read, starting cold: %s", self._path, error.strerror
            )
            return None

    def save_at(self, now_s: float) -> None:
        """Write the evidence if it is time to; atomic, by one rank."""
        if now_s - self._saved_s < _SAVE_INTERVAL_S or not self._is_writer:
            return
        self._saved_s = now_s
        try:
            # The scheduler does not wait for the disk: a file that a power cut damaged is refused at the next start.
            content = dump_law(self._policy.law, now_s, self._model)
            write_whole(self._path, content, is_durable=False)
        except FileError as error:
            logger.warning("radiximp: law_path: %s", error)
