"""Seconds, FLOPs and temporary bytes of operators, estimated or measured."""
