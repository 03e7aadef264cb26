"""Where tensors are seen."""
