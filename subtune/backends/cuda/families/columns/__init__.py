"""Column-wise reductions: threads of a block share runs of columns."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.columns.candidates import accepts, candidates
from subtune.backends.cuda.families.columns.schedule import ColumnsKnobs, schedule

FAMILY = Family("cuda.columns", 3, ColumnsKnobs, accepts, candidates, schedule)
