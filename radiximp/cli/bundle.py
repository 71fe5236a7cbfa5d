"""`radiximp bundle`: what a bug report needs of a running server, in one file, secrets removed.

Versions, server arguments, statistics with the configuration, the doctor's findings and the metrics. No environment, no prompt, no
token id. Look into it before you send it: names of models and folders are in it.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import tarfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from radiximp.cli import CommandError
from radiximp.cli.server_options import add_server_arguments, connected
from radiximp.diagnosis import diagnose, exit_code
from radiximp.redaction import redacted, redacted_text, secrets_in
from radiximp.replay.files import FileError, check_writable, write_whole
from radiximp.versions import installed_versions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="the .tar.gz file to write"
    )
    add_server_arguments(parser)


def run(args: argparse.Namespace) -> int:
    try:
        check_writable(args.output)
        with connected(args) as client:
            report, metrics = client.report(), _metrics(client)
        secrets = [args.api_key] if args.api_key else []
        files = contents(report, metrics, args.url, secrets)
        write_whole(args.output, archive(files))
    except FileError as error:
        raise CommandError(str(error)) from None
    sizes = {name: len(content) for name, content in files.items()}
    if args.json:
        print(json.dumps({"file": str(args.output), "bytes": sizes}))
    else:
        print(f"{args.output}: " + ", ".join(f"{name} ({size:,} bytes)" for name, size in sizes.items()))
        print("look into it before you send it: secrets are removed, names of models and folders are not")
    return 0


def _metrics(client) -> str:
    from radiximp.client import ApiError

    try:
        return client.metrics()
    except ApiError as error:
        return f"# none: the server answered {error}; was it started with --enable-metrics?\n"


def contents(report: dict[str, Any], metrics: str, url: str, secrets: list[str]) -> dict[str, str]:
    """Name -> text of each file of the bundle. secrets: known ones, removed wherever they stand."""
    secrets = [*secrets, *secrets_in(report)]
    findings = diagnose(report)
    doctor = {"url": url, "exit_code": exit_code(findings), "findings": [asdict(f) for f in findings]}
    parts = {
        "versions.json": {"server": report["versions"], "client": installed_versions()},
        "server_args.json": report["server_args"],
        "stats.json": report["ranks"],
        "doctor.json": doctor,
    }
    files = {
        name: json.dumps(redacted(part, secrets), indent=2, sort_keys=True, default=str) + "\n"
        for name, part in parts.items()
    }
    return {**files, "metrics.txt": redacted_text(metrics, secrets)}


def archive(files: dict[str, str]) -> bytes:
    """A .tar.gz of the files in a folder `radiximp-bundle/`; equal files give equal bytes."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as tar,
    ):
        for name, text in files.items():
            content = text.encode()
            member = tarfile.TarInfo(f"radiximp-bundle/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()
