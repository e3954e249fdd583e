"""The service over HTTP: REST, events and the dashboard, without TVM."""
