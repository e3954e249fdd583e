"""Networks in, tuned and verified libraries out."""
