"""One page about runs, models, tunings, comparisons and papers, readable offline: tables, curves, costs, maps, commands.

tokmix.report.write(["run1", "compare"], "report.html")
"""

from __future__ import annotations

from tokmix.report.build import write

__all__ = ["write"]
