"""A plan's outcome, as data."""

from .report import KINDS, Choice, Event, Point, Relied, Report, StorageStats

__all__ = ["KINDS", "Choice", "Event", "Point", "Relied", "Report", "StorageStats"]
