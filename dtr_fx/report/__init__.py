"""A plan's outcome, as data."""

from .report import KINDS, Choice, Event, Point, Report, StorageStats

__all__ = ["KINDS", "Choice", "Event", "Point", "Report", "StorageStats"]
