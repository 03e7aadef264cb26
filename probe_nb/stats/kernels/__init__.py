"""One kernel per kind of device; `host` and `eager` follow the same formulas."""
