"""Parts of the soak test: clients, faults, samples of processes, and checks at the end."""
