"""The dashboard: pages rendered on the server, updated live with JavaScript."""
