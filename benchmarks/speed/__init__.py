"""Speed of tuning, builds and libraries, compared with peers."""
