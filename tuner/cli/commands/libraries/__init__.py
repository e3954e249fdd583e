"""Commands that read the manifests of libraries."""
