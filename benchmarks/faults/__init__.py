"""Faults that were planted in small models, and what the tool says of them first."""
