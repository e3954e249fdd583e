"""The service over HTTP: REST, events, and the dashboard; knows no TVM."""
