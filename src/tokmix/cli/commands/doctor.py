from __future__ import annotations

import argparse

ABOUT = "show what is installed, which kernels run here, threads and disk, and run a self-test of ten seconds"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-self-test", dest="self_test", action="store_false", help="skip the self-test")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(options: argparse.Namespace) -> int:
    """1 if something does not work."""
    import json

    from tokmix.api.doctor import FAULT, NOTE, report

    findings = report(options.self_test, (lambda line: None) if options.json else (lambda line: print(line, flush=True)))
    faults, notes = (sum(finding.state == state for finding in findings) for state in (FAULT, NOTE))
    if options.json:
        print(json.dumps([vars(finding) for finding in findings], indent=1))
    else:
        print(f"{faults or 'no'} fault{'s' * (faults != 1)}, {notes or 'no'} note{'s' * (notes != 1)}")
    return 1 if faults else 0
