"""The processes of the service: a coordinator that takes jobs, and who keeps it running."""
