"""Import of models as Relax modules."""
