"""Runs in the forms that other tools read: tables of a training monitor, TensorBoard's events."""
