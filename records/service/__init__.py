"""Rows of the service: tokens, submissions, builds, workers, devices, quotas."""
