"""The table of faults: what was tried, how often, and what became of it, after the tests."""

import collections

FAULT = "fault"


def pytest_terminal_summary(terminalreporter) -> None:
    """Prints what tests have noted with the fixture `note`, from whichever process they ran in."""
    tried: collections.Counter[tuple[str, str]] = collections.Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, value in report.user_properties:
                    if name == FAULT:
                        fault, times, outcome = value
                        tried[fault, outcome] += times
    if tried:
        terminalreporter.section("faults")
        terminalreporter.write_line("| fault | times | outcome |")
        terminalreporter.write_line("|---|---|---|")
        for (fault, outcome), times in sorted(tried.items()):
            terminalreporter.write_line(f"| {fault} | {times} | {outcome} |")
