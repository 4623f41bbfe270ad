"""Row-wise reductions: who shares a row."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.rowwise.candidates import accepts, candidates
from subtune.backends.cuda.families.rowwise.schedule import RowwiseKnobs, schedule

FAMILY = Family("cuda.rowwise", 3, RowwiseKnobs, accepts, candidates, schedule)
