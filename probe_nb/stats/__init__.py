"""Where tensors become numbers."""
