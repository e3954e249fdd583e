"""Webhooks: signed requests to addresses that hear of the end of a job."""
