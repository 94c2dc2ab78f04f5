"""Tables and plots of any set of runs, beside the figures of the paper."""

from train.report.groups import Group, Section, collect, sections
from train.report.terminal import table
from train.report.write import write

__all__ = ["Group", "Section", "collect", "sections", "table", "write"]
