"""The rules: small pure functions from what was tallied to findings, vectorised over sites."""
