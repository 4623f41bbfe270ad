"""Any single reduction, for what no other family is made for."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.direct.candidates import accepts, candidates
from subtune.backends.cuda.families.direct.schedule import DirectKnobs, schedule

FAMILY = Family("cuda.direct", 1, DirectKnobs, accepts, candidates, schedule)
