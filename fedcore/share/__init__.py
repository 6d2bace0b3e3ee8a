"""A comparison for others: reports, bundles, and tables as files, whose names and formats are below.

Their writers are in ``fedcore.share.checked``; the command line names them without loading those.
"""

from typing import Literal

TableName = Literal[
    "summary", "domains", "configs", "breakdowns", "costs", "rounds", "clients", "diagnostics", "leaderboard",
    "experiment",
]  # fmt: skip
Format = Literal["csv", "latex", "json"]
SUFFIXES: dict[Format, str] = {"csv": "csv", "latex": "tex", "json": "json"}
