"""What other packages do with the same small models, found out by running them."""
