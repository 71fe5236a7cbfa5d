"""`radiximp doctor`: is the policy on in every process of a running server, and what keeps it from doing its work.

Exit code 0: on, and nothing in its way. 1: on, but something is to be changed. 2: not on in some process, or no answer.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from radiximp.cli.server_options import add_server_arguments, connected
from radiximp.diagnosis import ERROR, Finding, diagnose, exit_code

_MARKS = {"ok": "ok     ", "note": "note   ", "warning": "WARNING", "error": "ERROR  "}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser)


def run(args: argparse.Namespace) -> int:
    findings, config = [], {}
    with connected(args) as client:
        from radiximp.client import ApiError

        try:
            report = client.report()
        except ApiError as error:
            if error.status not in (404, 500):
                raise
            findings = [_absent(error.status, str(error))]
        else:
            findings, config = diagnose(report), report["ranks"][0]["config"]
    code = exit_code(findings)
    if args.json:
        print(json.dumps({"exit_code": code, "findings": [asdict(f) for f in findings], "config": config}))
        return code
    for finding in findings:
        print(
            f"{_MARKS[finding.level]} {finding.what}"
            + (f"\n          -> {finding.advice}" * bool(finding.advice))
        )
    if config:
        print("config  " + json.dumps(config))
    print(("the policy is on", "the policy is on; see the warnings", "the policy is NOT on everywhere")[code])
    return code


def _absent(status: int, message: str) -> Finding:
    if status == 500:
        return Finding(ERROR, message, "see the server's log for `radiximp`")
    return Finding(
        ERROR,
        "the HTTP process does not know /radiximp/: the plugin is not installed there, or another policy is chosen",
        "pip install radiximp beside sglang and --radix-eviction-policy importance",
    )
