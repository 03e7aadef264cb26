"""What several processes of one job should have in common, and whether they have."""
