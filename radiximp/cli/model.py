"""`radiximp model`: prepare the small default model; the path goes to stdout, progress to stderr."""

from __future__ import annotations

import argparse
import sys

from radiximp.cli import CommandError
from radiximp.serving import artifact, default_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command takes no options; where the model goes is $RADIXIMP_CACHE."""


def run(args: argparse.Namespace) -> int:
    try:
        path = default_model.prepare(lambda line: print(f"radiximp model: {line}", file=sys.stderr))
    except artifact.ArtifactError as error:
        raise CommandError(str(error)) from error
    print(path)
    return 0
