"""Why a run cannot go on."""

from __future__ import annotations


class RunFailed(Exception):
    """A run cannot go on."""


class OutOfBudget(RunFailed):
    """Nothing is left to evict.  ``op`` needed ``needed`` bytes beside the ``used`` resident ones."""

    def __init__(self, op: int, needed: int, used: int, budget: int) -> None:
        super().__init__(
            f"operator {op} needs {needed} bytes beside {used} resident, more than the budget of {budget}"
        )
        self.op = op
        self.needed = needed
        self.used = used


class Thrash(RunFailed):
    """Rematerialization costs more than the run's limit."""


class Discarded(RunFailed):
    """A storage is asked for that ``discard`` freed for good."""
