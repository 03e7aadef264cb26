"""What watching costs, measured side by side; see README.md in this folder."""
