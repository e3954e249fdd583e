"""Models of a job: loading by a worker process, the cache of loaded ones, limits on arguments."""
