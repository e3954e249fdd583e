"""Load of an API process: connections, slots of requests, streams, and answers to probes."""
