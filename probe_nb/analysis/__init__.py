"""Where numbers become answers; no torch."""
