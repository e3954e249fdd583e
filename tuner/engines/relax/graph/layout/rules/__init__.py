"""The rules by which operators take and give layouts."""
