"""Tables and plots of any set of runs, beside the figures of the paper.

`groups` says which runs belong together, `comparison` what is measured and said of them,
`drawings` which plots there are; the rest writes all this as text, HTML and CSV.
"""

from train.report.groups import Group, Section, collect, sections
from train.report.tables import table
from train.report.write import write

__all__ = ["Group", "Section", "collect", "sections", "table", "write"]
