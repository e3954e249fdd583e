"""What commands and the Python API report of jobs, tasks and libraries."""
