"""The outcome of one attempt to break FedLens."""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """The outcome of a fault; the last three are defects."""

    UNAFFECTED = "without effect"
    MENDED = "noticed and mended"
    REFUSED = "refused"
    DIFFERENT = "silent differences"
    STATE = "wrong states"
    RAW = "raw errors"


DEFECTS = (Outcome.DIFFERENT, Outcome.STATE, Outcome.RAW)


@dataclass(frozen=True)
class Verdict:
    """The outcome of one attempt; ``what`` describes the fault and the answer of FedLens in one line."""

    outcome: Outcome
    what: str = ""
