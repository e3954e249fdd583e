"""Settings of the search for candidates."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SearchSettings:
    """Effort of the search of one round.

    Attributes:
        n_islands: Searches side by side, each with a share of the population.
        population_per_trial: Traces alive in each generation, per requested candidate.
        min_population: Smallest population of an island.
        n_generations: Generations of mutation once the cost model is trained.
        timeout_secs: Time limit of an island, seconds.
    """

    n_islands: int = 2
    population_per_trial: int = 6
    min_population: int = 16
    n_generations: int = 2
    timeout_secs: float = 300.0
