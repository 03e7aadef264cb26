"""Two runs side by side: what belongs together, how far it is apart, and where that began."""
