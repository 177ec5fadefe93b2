"""One page about runs, models, tunings, comparisons and papers, readable offline: tables, curves, costs, maps, commands.

tokmix.pages.report.write(["run1", "compare"], "report.html")
"""

from __future__ import annotations

from tokmix.pages.report.build import write

__all__ = ["write"]
