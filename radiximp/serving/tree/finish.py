"""How a request ended, as the policy's finish kinds: known when its response is complete, never earlier."""

from __future__ import annotations

import logging
from collections.abc import Callable

from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH

logger = logging.getLogger(__name__)


def tool_call_test(parser: str | None) -> Callable[[str], bool]:
    """Whether a text holds a tool call in the format of `--tool-call-parser`; never, without one."""
    if not parser:
        return lambda text: False
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    detector = FunctionCallParser.ToolCallParserEnum.get(parser)
    try:
        return detector().has_tool_call
    except Exception as error:  # a detector that needs more than a name; SGLang makes it later, with that
        logger.warning(
            "radiximp: tool calls of --tool-call-parser %s are not told from other answers: %s", parser, error
        )
        return lambda text: False


class FinishReader:
    """Reads a scheduler's `Req`; O(output tokens) once per request, and only where tool calls are parsed."""

    def __init__(self, parser: str | None = None) -> None:
        self._has_parser = bool(parser)
        self._has_tool_call = tool_call_test(parser)

    def end_of(self, req) -> tuple[str, int] | None:
        """(finish kind, output tokens) of a finished request; None while it runs."""
        reason = getattr(req, "finished_reason", None)
        if reason is None:
            return None
        num_tokens = len(req.output_ids)
        if isinstance(reason, FINISH_ABORT):
            return "", num_tokens
        if isinstance(reason, FINISH_LENGTH):
            return "length", num_tokens
        if self._has_parser and req.tokenizer and self._has_tool_call(req.tokenizer.decode(req.output_ids)):
            return "tool_use", num_tokens
        return "end_turn", num_tokens
