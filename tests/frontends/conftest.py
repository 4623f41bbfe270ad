"""What operators compute, whoever schedules them: see `quick_code`."""

from tests.quick_code import quick_code as quick_code
