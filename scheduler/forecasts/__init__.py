"""Forecasts of latency curves: models, savings by further trials, chances of rivals."""
