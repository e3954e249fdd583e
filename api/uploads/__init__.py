"""Uploads: forms with a model, received, stored and submitted as jobs."""
