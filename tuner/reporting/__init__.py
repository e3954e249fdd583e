"""Reports of jobs, tasks and libraries, as text, as data and as pages."""
