"""Where numbers live: append-only columns, their schema, and files."""
