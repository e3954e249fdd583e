"""The routes of the REST API, one module for each resource."""

PREFIX = "/api/v1"
#: Routes of the devices that measure over HTTPS.
REMOTE = f"{PREFIX}/remote"
