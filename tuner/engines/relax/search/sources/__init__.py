"""Sources of candidates: rules, variants, mutants, evolution, random programs."""
