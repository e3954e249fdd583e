"""The routes of the REST API, a module a resource."""

PREFIX = "/api/v1"
